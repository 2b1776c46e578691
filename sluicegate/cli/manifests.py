"""`sluicegate release manifests`: what would run a release on a Kubernetes cluster, as YAML."""

from __future__ import annotations

import argparse
import re
from typing import Final
from urllib.parse import quote

import yaml

from serving.targets.core.kubernetes import NotForKubernetes, Place, objects_of, undeclared
from sluicegate.cli import exits
from sluicegate.cli.errors import CommandError, refuse
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect, server_url
from sluicegate.cli.verify import wrong_manifest
from sluicegate.client.names import release_of, release_path

ABOUT = """Prints a Deployment, a headless Service and a PodDisruptionBudget, made from the sealed manifest. Nothing is sent to a cluster.
  sluicegate release manifests sentiment/r14 --environment production \\
    --cli-image registry.example/sluicegate@sha256:… | kubectl apply --server-side -f -
The namespace needs a Secret `sluicegate-fetch` with the key `token`: a token that may read this model's releases."""
_BY_DIGEST: Final = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")
_DNS_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb below `release`."""
    parser = verbs.add_parser(
        "manifests",
        help="Print the Kubernetes objects that run a release",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("release", metavar="RELEASE", help="such as sentiment/r2")
    parser.add_argument("--environment", required=True, metavar="NAME", help="an environment of this installation")
    parser.add_argument(
        "--cli-image", required=True, metavar="IMAGE", help="image by digest that holds the command `sluicegate`"
    )
    parser.add_argument("--namespace", metavar="NAME", help="the environment's name if left out")
    parser.add_argument("--replicas", type=int, default=1, metavar="N", help="servers (1)")
    parser.add_argument(
        "--url", metavar="URL", help="address of this installation's API, as pods reach it; the CLI's own if left out"
    )
    parser.add_argument(
        "--node-label", action="append", default=[], metavar="LABEL=VALUE", help="nodes that may run it; again for more"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    place = _place(arguments)
    with connect(arguments.server) as client:
        client.get(f"/environments/{quote(arguments.environment, safe='')}")
        release = client.get(release_path(arguments.release))
    if wrong := wrong_manifest(release):
        raise CommandError(wrong[0], exit_code=exits.FAILED, next_step="Run `sluicegate release verify`.")
    model, number = release_of(arguments.release)
    try:
        objects = objects_of(
            release["manifest"], number=int(number.removeprefix("r")), digest=release["digest"], place=place
        )
    except NotForKubernetes as error:
        raise refuse(str(error), error.next_step) from error
    lines = [
        f"# {one} is not declared in the envelope, so the cluster places this pod without it."
        for one in undeclared(release["manifest"])
    ]
    text = yaml.dump_all(objects, Dumper=_Plain, sort_keys=False, width=10_000)
    output.result({"release": f"{model}/{number}", "objects": objects}, [*lines, text.rstrip("\n")])
    return exits.OK


def _place(arguments: argparse.Namespace) -> Place:
    if not _BY_DIGEST.fullmatch(arguments.cli_image):
        raise refuse(f"{arguments.cli_image!r} names no image by digest.", "Write NAME@sha256:… with 64 hex digits.")
    namespace = arguments.namespace or arguments.environment
    if not _DNS_LABEL.fullmatch(namespace):
        raise refuse(
            f"{namespace!r} cannot be a namespace.", "Write --namespace with lower case letters, digits and -."
        )
    if not 1 <= arguments.replicas <= 1000:
        raise refuse("--replicas is from 1 to 1000.", "Write a number of servers.")
    labels = [one.partition("=") for one in arguments.node_label]
    if bad := [label for label, equals, value in labels if not (label and equals and value)]:
        raise refuse(f"--node-label {bad[0]!r} names no label and value.", "Write LABEL=VALUE.")
    return Place(
        environment=arguments.environment,
        namespace=namespace,
        url=arguments.url or server_url(arguments.server),
        cli_image=arguments.cli_image,
        replicas=arguments.replicas,
        node_labels={label: value for label, _, value in labels},
    )
