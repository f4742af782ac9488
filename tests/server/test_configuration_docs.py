from pathlib import Path

from server.config import RunConfig


def test_the_documentation_has_every_key_as_it_is() -> None:
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
    for key, default, allowed, meaning in RunConfig.described():
        value = str(default).lower() if isinstance(default, bool) else repr(default)
        assert f"| `{key}` | `{value}` | {allowed} | {meaning} |\n" in text
