import socket
from pathlib import Path

from typer.testing import CliRunner

from simulation.cli import app


def muster(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


def test_credentials_lists_what_it_wrote(tmp_path: Path) -> None:
    options = ("--server", "fl.example.org", "--clients", "a, b")
    code, output = muster("credentials", str(tmp_path), *options)
    assert code == 0
    assert str(tmp_path / "clients/b/client.key") in output
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert f"{len(files)} files written" in output
    assert "0 files written" in muster("credentials", str(tmp_path), *options)[1]


def test_credentials_tells_mistakes_in_one_line(tmp_path: Path) -> None:
    code, output = muster("credentials", str(tmp_path), "--server", "http://x")
    assert code == 1
    assert output.startswith("error: server: 'http://x'")
    assert output.count("\n") == 1
    (tmp_path / "file").touch()
    code, output = muster("credentials", str(tmp_path / "file/below"), "--server", "x")
    assert code == 1
    assert output.count("\n") == 1


def test_doctor_names_the_cause_and_the_mend() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    code, output = muster("doctor", "--superlink", f"127.0.0.1:{port}", "--insecure")
    assert code == 1
    assert "   ok host name" in output
    assert "WRONG reachability nothing listens" in output
    assert "-> start the SuperLink" in output


def test_doctor_tells_mistakes_in_one_line() -> None:
    code, output = muster("doctor", "--superlink", "http://host:1")
    assert code == 1
    assert output.startswith("error: superlink: 'http://host:1'")
    assert output.count("\n") == 1
