"""`sluicegate issuer …`: who else says who somebody is, its rules, and the people it signs in."""

from __future__ import annotations

import argparse
from typing import Any

from sluicegate.cli import exits
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect
from sluicegate.cli.settings_values import add_file, add_yes, changed, claims_of, require_yes, secret_in, values_of

HELP = "Sign-in by an issuer, and its rules for people and CI jobs"
COLUMNS = ("issuer", "title", "kind", "address", "on", "people", "programs")
FIELDS = ("title", "client_id", "audience", "session_hours", "is_for_people", "creates_accounts", "is_active")
#: What can be removed: where, and what happens then.
REMOVABLE = {
    "rule": ("/token-rules", "Token rule {} ends, and every token that it gave ends at once."),
    "role": (
        "/role-rules",
        "Role rule {} ends; each person loses its role at the next sign-in, unless another gives it.",
    ),
    "person": ("/identities", "Person {} signs in by this issuer no more; sessions that it began end at once."),
}
EXAMPLES = """examples:
  sluicegate issuer create https://login.example.com/realms/all --client-id sluicegate --client-secret-file secret --for-people
  sluicegate issuer create https://token.actions.githubusercontent.com --kind github --audience https://sluicegate.example.com
  sluicegate issuer rule 2 --title "ranker, main" --claim repository_id=4711 --claim ref=refs/heads/main --robot ci-ranker --may ci
  sluicegate issuer role 1 --claim groups=ml-release-managers --role release_manager --team search
  sluicegate issuer person 1 ann 00u1abcd
  sluicegate issuer remove rule 7
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    shaped: dict[str, Any] = {"epilog": EXAMPLES, "formatter_class": argparse.RawDescriptionHelpFormatter}
    verbs = commands.add_parser("issuer", help=HELP, **shaped).add_subparsers(metavar="VERB", required=True)
    verbs.add_parser("list", help="List issuers").set_defaults(run=run_list)
    for verb, run, text in (
        ("show", run_show, "Show one with its rules and people, and what is wrong with a rule"),
        ("check", run_check, "Ask it now whether it answers"),
    ):
        parser = verbs.add_parser(verb, help=text)
        _add_issuer(parser)
        parser.set_defaults(run=run)
    parser = verbs.add_parser("create", help="Add one", **shaped)
    parser.add_argument("url", metavar="URL", help="as it calls itself (iss), to the letter")
    parser.add_argument("--kind", choices=("github", "gitlab", "other"))
    _add_fields(parser)
    parser.set_defaults(run=run_create)
    parser = verbs.add_parser("change", help="Change one; turned off, what it gave ends at once", **shaped)
    _add_issuer(parser)
    parser.add_argument("--on", dest="is_active", action="store_const", const=True, help="let it sign in again")
    parser.add_argument("--off", dest="is_active", action="store_const", const=False, help="shut it")
    _add_fields(parser)
    add_yes(parser)
    parser.set_defaults(run=run_change)
    _add_rules(verbs, shaped)
    parser = verbs.add_parser("remove", help="Remove a token rule, a role rule or a person", **shaped)
    parser.add_argument("what", choices=tuple(REMOVABLE))
    parser.add_argument("number", type=int, metavar="NUMBER", help="as `issuer show` has it")
    add_yes(parser)
    parser.set_defaults(run=run_remove)


def _add_rules(verbs: argparse._SubParsersAction[argparse.ArgumentParser], shaped: dict[str, Any]) -> None:
    parser = verbs.add_parser("rule", help="Say which identity tokens get a token of which robot", **shaped)
    _add_issuer(parser)
    parser.add_argument("--title", help="what it is for")
    _add_claims(parser)
    parser.add_argument("--robot", metavar="USERNAME", help="a user without a password, whom the token acts as")
    parser.add_argument("--may", action="append", metavar="VERB", help="a verb, or a role for all of its verbs")
    parser.add_argument("--model", action="append", metavar="MODEL", help="a model or a pattern; left out: all")
    parser.add_argument("--minutes", type=int, help="how long its tokens live, 15 to 60 (15)")
    add_file(parser)
    parser.set_defaults(run=run_rule)
    parser = verbs.add_parser("role", help="Say which people hold a role, by their claims", **shaped)
    _add_issuer(parser)
    _add_claims(parser)
    parser.add_argument("--role", choices=("viewer", "model_team", "ci", "release_manager"))
    parser.add_argument("--team", help="`*` for every team (viewer and release_manager alone)")
    add_file(parser)
    parser.set_defaults(run=run_role)
    parser = verbs.add_parser("person", help="Prepare an account: whom the issuer calls SUB signs in as the user")
    _add_issuer(parser)
    parser.add_argument("username", metavar="USERNAME")
    parser.add_argument("sub", metavar="SUB", help="the person's number at the issuer")
    parser.set_defaults(run=run_person)


def _add_issuer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("issuer", type=int, metavar="ISSUER", help="its number in the list")


def _add_claims(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--claim",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="all of them hold; * at the end is any ending",
    )


def _add_fields(parser: argparse.ArgumentParser) -> None:
    flag = argparse.BooleanOptionalAction
    parser.add_argument("--title", help="as on the button of the sign-in page")
    parser.add_argument("--client-id", help="as Sluicegate is registered there, for people")
    parser.add_argument("--client-secret-file", metavar="FILE", help="holds the client secret; - is standard input")
    parser.add_argument("--audience", help="of programs' identity tokens; empty: none are taken")
    parser.add_argument("--session-hours", type=int, metavar="HOURS", help="until people sign in again, 1 to 168 (12)")
    parser.add_argument("--for-people", dest="is_for_people", action=flag, help="the sign-in page offers it")
    parser.add_argument("--creates-accounts", action=flag, help="whoever signs in first gets an account, without roles")
    add_file(parser)


def run_list(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        rows = client.get("/issuers")["results"]
    cells = [
        (row["id"], row["title"], row["kind"], row["url"], "yes" if row["is_active"] else "no",
         "sign in" if row["is_for_people"] else "no", row["audience"] or "no")
        for row in rows
    ]  # fmt: skip
    output.table(rows, COLUMNS, cells, empty="No issuer yet. Add one: sluicegate issuer create URL")
    return exits.OK


def run_show(arguments: argparse.Namespace, output: Output) -> int:
    path = f"/issuers/{arguments.issuer}"
    with connect(arguments.server) as client:
        row = client.get(path)
        parts = {name: client.get(f"{path}/{name}")["results"] for name in ("token-rules", "role-rules", "identities")}
    lines = [f"{row['title']} ({row['kind']}, {'on' if row['is_active'] else 'off'}): {row['url']}"]
    for rule in parts["token-rules"]:
        state = "" if rule["is_active"] else " (off)"
        lines.append(
            f"  rule {rule['id']}{state} {rule['title']}: {_claims(rule)} → {rule['username']}, {', '.join(rule['verbs'])}"
        )
        lines += [f"    gives no token: {one['message']} {one['fix']}" for one in rule["problems"]]
    lines += [f"  role {one['id']}: {_claims(one)} → {one['role']} in {one['team']}" for one in parts["role-rules"]]
    lines += [f"  person {one['id']}: {one['sub']} is {one['username']}" for one in parts["identities"]]
    output.result({**row, **{name.replace("-", "_"): found for name, found in parts.items()}}, lines)
    return exits.OK


def _claims(rule: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in rule["claims"].items())


def run_check(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        found = client.post(f"/issuers/{arguments.issuer}/check")
    output.result(found, [f"{found['issuer']} answers, and publishes {found['keys']} keys."])
    return exits.OK


def _fields_of(arguments: argparse.Namespace, **more: Any) -> dict[str, Any]:
    names = [name for name in FIELDS if hasattr(arguments, name)]
    return values_of(arguments, names, client_secret=secret_in(arguments.client_secret_file), **more)


def run_create(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        row = client.post("/issuers", _fields_of(arguments, url=arguments.url, kind=arguments.kind))
    output.result(row, [f"Issuer {row['id']} is there.", f"Next: sluicegate issuer check {row['id']}"])
    return exits.OK


def run_change(arguments: argparse.Namespace, output: Output) -> int:
    body = _fields_of(arguments)
    if body.get("is_active") is False or body.get("is_for_people") is False:
        require_yes(arguments, "Sessions, roles and tokens that this issuer gave end at once.")
    with connect(arguments.server) as client:
        row = changed(client, f"/issuers/{arguments.issuer}", body)
    output.result(row, [f"Issuer {row['id']} is changed; it is {'on' if row['is_active'] else 'off'}."])
    return exits.OK


def run_rule(arguments: argparse.Namespace, output: Output) -> int:
    life_s = None if arguments.minutes is None else arguments.minutes * 60
    body = values_of(
        arguments, ("title",), claims=claims_of(arguments.claim), username=arguments.robot, verbs=arguments.may,
        models=arguments.model, life_s=life_s,
    )  # fmt: skip
    return _add(arguments, output, "token-rules", body, "Token rule {} is there; it gives tokens from now on.")


def run_role(arguments: argparse.Namespace, output: Output) -> int:
    body = values_of(arguments, ("role", "team"), claims=claims_of(arguments.claim))
    return _add(
        arguments, output, "role-rules", body, "Role rule {} is there; it counts from each person's next sign-in."
    )


def run_person(arguments: argparse.Namespace, output: Output) -> int:
    body = {"username": arguments.username, "sub": arguments.sub}
    return _add(arguments, output, "identities", body, f"Person {{}} signs in as {arguments.username}.")


def _add(arguments: argparse.Namespace, output: Output, what: str, body: dict[str, Any], done: str) -> int:
    with connect(arguments.server) as client:
        made = client.post(f"/issuers/{arguments.issuer}/{what}", body)
    output.result(made, [done.format(made["id"])])
    return exits.OK


def run_remove(arguments: argparse.Namespace, output: Output) -> int:
    path, happens = REMOVABLE[arguments.what]
    require_yes(arguments, happens.format(arguments.number))
    with connect(arguments.server) as client:
        address = f"{path}/{arguments.number}"
        version = client.get(address)["version"] if arguments.what == "rule" else None
        client.delete(address, version=version)
    removed = {"removed": arguments.what, "number": arguments.number}
    output.result(removed, [f"{arguments.what.capitalize()} {arguments.number} is gone."])
    return exits.OK
