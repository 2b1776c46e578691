"""`manage.py register_gateway NAME …`: a gateway for an environment, and the configuration to start its Envoy with."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from accounts.core.access import Actor
from ledger.core.errors import DomainError
from serving.actions.routes import register_gateway
from serving.adapters.envoy_bootstrap import LEAST_HEAP_BYTES, bootstrap, heap_of_this_machine
from serving.core.addresses import Address, TlsFiles, gateway_identity
from serving.queries import get_environment


class Command(BaseCommand):
    help = "Registers a gateway and prints the JSON to start its Envoy with (envoy -c FILE)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="its name, which its certificate must carry")
        parser.add_argument("--environment", required=True, metavar="SLUG")
        parser.add_argument(
            "--http-url", required=True, metavar="URL", help="where it listens for HTTP: http://host:port"
        )
        parser.add_argument("--grpc-address", required=True, metavar="HOST:PORT", help="where it listens for gRPC")
        parser.add_argument(
            "--admin",
            default="",
            metavar="ADDRESS",
            help="where Envoy's admin interface listens (unix:/run/sluicegate/NAME-admin.sock, for Envoy's own user)",
        )
        parser.add_argument(
            "--heap-mib",
            type=int,
            default=heap_of_this_machine() >> 20,
            metavar="MIB",
            help="memory that it may hold (%(default)s, half of this machine's)",
        )
        parser.add_argument(
            "--counters",
            default="",
            metavar="HOST:PORT",
            help="where engines on other machines read its counters, over TLS",
        )
        parser.add_argument("--control-planes", default=settings.XDS_ADDRESS, metavar="ADDRESSES", help="(%(default)s)")
        parser.add_argument(
            "--relay",
            default="",
            metavar="unix:/PATH",
            help="where the gateway's relay listens, which keeps its last snapshot; without, it has no routes at a start "
            "without control planes",
        )
        parser.add_argument(
            "--certificate", default="", metavar="FILE", help="on the gateway's machine, as the two below"
        )
        parser.add_argument("--key", default="", metavar="FILE")
        parser.add_argument(
            "--authority", default="", metavar="FILE", help="who signed the control plane's certificate"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        admin_address = options["admin"] or f"unix:/run/sluicegate/{options['name']}-admin.sock"
        name, files = options["name"], (options["certificate"], options["key"], options["authority"])
        if any(files) and not all(files):
            raise CommandError("--certificate, --key and --authority go together.")
        tls = TlsFiles(*files) if all(files) else None
        try:
            planes = [Address.at(one.strip()) for one in options["control_planes"].split(",")]
            if tls is None and not all(one.is_of_this_machine for one in planes):
                raise CommandError(
                    f"A control plane on another machine wants to know who calls: give --certificate (for {gateway_identity(name)}), "
                    "--key and --authority."
                )
            admin = Address.at(admin_address)
            configuration = bootstrap(
                name,
                options["control_planes"],
                admin_address,
                tls,
                options["counters"],
                heap_bytes=_heap(options["heap_mib"]),
                relay=_socket_file(options["relay"]),
            )
            register_gateway(
                actor=Actor.system("setup"),
                environment=get_environment(options["environment"]),
                name=name,
                admin_url=_url(options["counters"], admin_address, is_file=bool(admin.path)),
                http_url=options["http_url"],
                grpc_address=options["grpc_address"],
            )
        except (ValueError, DomainError) as error:
            raise CommandError(str(error)) from None
        if not admin.path:
            self.stderr.write(
                f"{admin_address}: every user of the gateway's machine can stop Envoy there, and read all that it was told. "
                "Give --admin unix:/path."
            )
        self.stdout.write(json.dumps(configuration, indent=1))


def _heap(mib: int) -> int:
    if mib << 20 < LEAST_HEAP_BYTES:
        raise ValueError(f"--heap-mib must be {LEAST_HEAP_BYTES >> 20} or more.")
    return mib << 20


def _socket_file(relay: str) -> str:
    if relay and not Address.at(relay).path:
        raise ValueError(f"--relay must be unix:/path, on the gateway's machine, not {relay}.")
    return relay


def _url(counters: str, admin: str, *, is_file: bool) -> str:
    """Where engines read what the gateway counted."""
    if counters:
        return f"https://{counters}"
    return admin if is_file else f"http://{admin}"
