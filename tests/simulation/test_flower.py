import _thread
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from simulation.flower import RunFailed, SuperLink, run_on_ray, superlink

APP = Path(__file__).parent / "tiny_app"


@pytest.fixture(scope="module")
def link() -> Iterator[SuperLink]:
    with superlink() as started:
        yield started


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.mark.slow
def test_shows_only_the_servers_own_lines(link: SuperLink) -> None:
    lines: list[str] = []
    link.run(APP, {"text": 'it\'s "quoted" = odd'}, num_clients=3, on_line=lines.append)
    assert [line for line in lines if line] == [
        'text: it\'s "quoted" = odd',
        "partitions: [0, 1, 2]",
    ]


@pytest.mark.slow
def test_a_raising_server_is_a_failed_run_with_its_reason(link: SuperLink) -> None:
    with pytest.raises(RunFailed, match=r"^seed: -1 is not allowed$") as failed:
        link.run(APP, {"mode": "raise"}, num_clients=3, on_line=lambda _: None)
    assert "Traceback" in failed.value.log


@pytest.mark.slow
def test_an_interrupted_run_leaves_no_process_behind() -> None:
    before = children()
    seen: set[int] = set()

    def interrupt(_: str) -> None:
        seen.update(children() - before)
        _thread.interrupt_main()

    with pytest.raises(KeyboardInterrupt):
        run_on_ray(APP, {"mode": "sleep"}, num_clients=3, on_line=interrupt)
    assert len(seen) >= 3  # SuperLink, SuperExec, simulation
    assert not any(running(pid) for pid in seen)


@pytest.mark.parametrize(
    ("run_config", "options", "message"),
    [
        ({"txet": "a"}, {"num_clients": 3}, "txet: unknown key; allowed are mode, text"),
        ({}, {"num_clients": 0}, "clients: 0 is not allowed; at least 1"),
        ({}, {"num_clients": 3, "cpus": 0}, "cpus: 0 is not allowed; 1 to"),
        ({}, {"num_clients": 3, "cpus": 10_000}, "cpus: 10000 is not allowed; 1 to"),
    ],
)
def test_bad_input_is_one_line(
    run_config: dict[str, str], options: dict[str, int], message: str
) -> None:
    with pytest.raises(RunFailed) as failed:
        run_on_ray(APP, run_config, **options)
    assert str(failed.value).startswith(message)
    assert "\n" not in str(failed.value)


def test_a_folder_that_is_no_app_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"is not a Flower App: it has no"):
        run_on_ray(tmp_path, {}, num_clients=1)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    with pytest.raises(RunFailed, match=r"is not a Flower App: pyproject.toml has no"):
        run_on_ray(tmp_path, {}, num_clients=1)
