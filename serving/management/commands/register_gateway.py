"""`manage.py register_gateway NAME …`: a gateway for an environment, and the configuration to start its Envoy with."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import fields
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from accounts.core.access import Actor
from ledger.core.errors import DomainError
from serving.targets.queries import get_environment
from serving.traffic.actions.gateways import add_gateway
from serving.traffic.adapters.envoy_bootstrap import heap_of_this_machine
from serving.traffic.core.gateway_setup import GatewaySetup


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
        told = {one.name: options[one.name] for one in fields(GatewaySetup)}
        try:
            setup = GatewaySetup(**told)
            _, configuration = add_gateway(
                actor=Actor.system("setup"),
                environment=get_environment(options["environment"]),
                setup=setup,
                http_url=options["http_url"],
                grpc_address=options["grpc_address"],
            )
        except (ValueError, DomainError) as error:
            raise CommandError(str(error)) from None
        if setup.warning:
            self.stderr.write(setup.warning)
        self.stdout.write(json.dumps(configuration, indent=1))
