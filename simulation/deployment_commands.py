"""`muster credentials` and `muster doctor`, for deployments on real machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulation.terminal import fail

if TYPE_CHECKING:
    from simulation.doctor import Check

__all__ = ["credentials", "doctor"]


def credentials(
    folder: Annotated[Path, typer.Argument(help="Where to write; made if missing.")],
    server: Annotated[
        str, typer.Option(help="Host name or IP address by which clients reach the server.")
    ],
    clients: Annotated[str, typer.Option(help="Client names separated by commas.")] = "",
) -> None:
    """Make the certificates, client keys and secrets of a deployment; never overwrite any.

    Called again with more clients, it adds theirs.

    Example: muster credentials credentials --server fl.example.org --clients hospital-a,hospital-b
    """
    from simulation.credentials import create_credentials

    names = [name.strip() for name in clients.split(",") if name.strip()]
    try:
        written = create_credentials(folder, server=server, clients=names)
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")
    for path in written:
        typer.echo(path)
    typer.echo(f"{len(written)} files written; each machine gets its own folder and no other")


def doctor(
    superlink: Annotated[
        str, typer.Option(help="HOST:PORT, as for flower-supernode.", metavar="HOST:PORT")
    ],
    root_certificates: Annotated[
        Path | None, typer.Option(help="The CA certificate, as for flower-supernode.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="This client's private key (--auth-supernode-private-key).")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Plain HTTP, as for flower-supernode.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds for each connection.")] = 5.0,
) -> None:
    """Say why a SuperNode cannot join, which it may not do itself, and what to do about it.

    Exits with 0 if it could join.

    Example: muster doctor --superlink fl.example.org:8443 --root-certificates ca.crt
    """
    from simulation.doctor import diagnose

    try:
        checks = diagnose(
            superlink,
            root_certificates=root_certificates,
            key=key,
            insecure=insecure,
            timeout=timeout,
        )
    except ValueError as error:
        fail(str(error))
    for check in checks:
        typer.echo(_line(check))
        if check.mend:
            typer.echo(f"{'':19}-> {check.mend}")
    raise typer.Exit(any(check.passed is False for check in checks))


def _line(check: Check) -> str:
    word = {True: "ok", False: "WRONG", None: "?"}[check.passed]
    return f"{word:>5} {check.name:<12} {check.found}"
