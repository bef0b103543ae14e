"""Secrets: hidden where a URL, a connection string or a setting gives them; other text is left alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grok import untrusted
from grok.untrusted import without_passwords, without_secrets

SECRET = "s3cr3t" + "Zq9Xw7"
PASSWORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="'\"\\`"), max_size=8).map(
    lambda noise: f"{noise[:4]}{SECRET}{noise[4:]}"
)
SCHEMES = st.sampled_from(["postgresql", "mysql+pymysql", "https", "s3", "redis", "sqlite", "git+ssh"])
AROUND = st.sampled_from(
    ["{}", "study.storage={}", "could not open {} (refused)", "a\n{}\nb", '"{}"', "'{}', other", "({})"]
)


@given(SCHEMES, PASSWORDS, AROUND)
def test_a_password_before_the_host(scheme: str, password: str, around: str) -> None:
    shown = without_passwords(around.format(f"{scheme}://me:{password}@host:5432/db"))
    assert SECRET not in shown
    assert "host" in shown or "@" not in shown


@given(
    SCHEMES,
    st.text("abcXYZ0189+/._-", max_size=4),
    st.sampled_from(["password", "sslpassword", "pwd", "api_key", "access_token", "X-Amz-Signature"]),
    st.sampled_from(["?{}={}", "?user=me&{}={}", ";{}={};a=b", "?{}={}&ssl=1", "#{}={}"]),
    AROUND,
)
def test_a_parameter_named_like_a_secret(scheme: str, noise: str, name: str, form: str, around: str) -> None:
    one = f"{scheme}://host/db" + form.format(name, noise + SECRET)
    assert SECRET not in without_passwords(around.format(one))


@pytest.mark.parametrize(
    "token",
    ["hf_" + "a1" * 17, "ghp_" + "B2" * 18, "github_pat_" + "c3" * 20, "glpat-" + "d4" * 10, "AKIA" + "ABCD" * 4,
     "sk-" + "e5" * 20, "eyJ" + "a" * 12 + "." + "b" * 12 + ".c"],
)  # fmt: skip
@pytest.mark.parametrize(
    "around", ["{}", "https://{}@github.com/a/b", "refused: {} is not valid", "https://x:{}@host/"]
)
def test_tokens_of_known_forms(token: str, around: str) -> None:
    assert token not in without_passwords(around.format(token))


@pytest.mark.parametrize(
    "text",
    [
        "mysql:/me:{}@host/db", "no store at https:/me:x/{}@host (it does not exist)",
        '{{"password": "{}"}}', "{{'password': '{}'}}", "db_pass={}",
        "pass={}", "token: {}", "--token={}", "npm_{}abcdefgh", "AIza{}abcdefgh",
        "pypi-{}abcdefgh", "ya29.{}abcdefgh", "host=db user=me client_secret={} dbname=studies", "PASSWORD = {}",
    ],
)  # fmt: skip
def test_other_forms(text: str) -> None:
    assert SECRET not in without_passwords(text.format(SECRET))


def test_a_setting_named_like_a_secret() -> None:
    settings = {"log.plugin": {"_target_": "mine.Log", "password": SECRET, "api_key": SECRET, "tokens": "gpt2"}, "n": 3}
    shown = without_secrets({"a": [settings, (f"s3://me:{SECRET}@host", None)]})["a"]
    assert shown[0]["log.plugin"] == {"_target_": "mine.Log", "password": "***", "api_key": "***", "tokens": "gpt2"}
    assert SECRET not in str(shown) and shown[0]["n"] == 3


@pytest.mark.parametrize("name", ["PGPASSWORD", "DATABASE_PASS", "AZURE_STORAGE_KEY", "HF_TOKEN", "WANDB_API_KEY"])
def test_a_secret_of_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, f"/{SECRET}")
    monkeypatch.setenv("SECRETS_FOLDER", "results/store")
    untrusted._of_environment.cache_clear()
    try:
        assert without_passwords(f"refused: /{SECRET} is wrong") == "refused: *** is wrong"
        assert without_passwords("in results/store") == "in results/store"
    finally:
        untrusted._of_environment.cache_clear()


@pytest.mark.parametrize(
    "text",
    [
        "python -m grok.run -m 'seed=range(0,64)' store.path=results/a task.operation=x^2+y^2",
        "https://host:8080/path?user=me&ssl=1",
        "git@github.com:me/project.git",
        "postgresql://me@localhost/db",
        "eval.passes=1 data.tokenizer=gpt2: unknown token: 'x', expected train.tokens=5000",
        "grok prepare text --tokenizer char --tokens 500",
    ],
)
def test_other_text_is_left_alone(text: str) -> None:
    assert without_passwords(text) == text
