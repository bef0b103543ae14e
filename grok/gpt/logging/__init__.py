"""What a language model's training writes beside the store: step log, TensorBoard and others, traces, samples."""
