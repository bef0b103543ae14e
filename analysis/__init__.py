"""From the store to answers with intervals: reads what grok wrote, trains nothing, imports no torch.

``statistics`` computes, ``studies`` choose the runs a question is about and answer it,
``figures`` draw the answers, ``report`` assembles the page.
"""
