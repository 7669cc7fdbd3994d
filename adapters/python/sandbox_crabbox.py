#!/usr/bin/env python3
"""Sandboxes for crabbox, by the command line "sandbox": the executable of its external provider.

    provider: external
    target: linux
    external:
      command: /path/to/sandbox_crabbox.py
      config: {image: "node:20-bookworm", vcpus: 2, memory: 4g, network: public-only}
      workRoot: /workspace

A lease is a sandbox of the lease's name; its files stay until crabbox releases it. ssh reaches it through
"sandbox proxy", without a port. The image needs rsync and git for what crabbox does with them.
Standard library only. The program is SANDBOX_PROGRAM, by default "sandbox".
"""

import asyncio
import json
import os
import shlex
import sys

from sandbox_cli import SandboxError, delete, manage

VERSION = 1
TAG = "crabbox"
FLAGS = ("image", "vcpus", "memory", "network", "idle-timeout", "timeout")


def lease(status, desired):
    name, program = status["name"], os.environ.get("SANDBOX_PROGRAM", "sandbox")
    return {
        "leaseId": desired.get("leaseId") or status["tags"].get(TAG, name),
        "slug": desired.get("slug") or name,
        "name": name,
        "cloudId": status["id"],
        "status": "ready" if status["status"] == "running" else status["status"],
        "ssh": {"user": "root", "host": f"{name}.sandbox", "port": "22", "proxyCommand": f"{shlex.quote(program)} proxy {name}"},
    }


async def find(request):
    """The sandbox of a request for a lease that exists, by the lease's ID or its name."""
    wanted = {value for part in ("desired", "lease") for value in (request.get(part) or {}).values() if isinstance(value, str)}
    for status in await manage("list", "--json"):
        tag = (status.get("tags") or {}).get(TAG)
        if tag is not None and wanted & {tag, status["name"], status["id"]}:
            return status
    raise SandboxError("there is no such lease")


async def answer(request):
    if request.get("protocolVersion") != VERSION:
        raise SandboxError(f"protocol version {request.get('protocolVersion')!r}: this is for version {VERSION}")
    operation, config, desired = request["operation"], request.get("config") or {}, request.get("desired") or {}
    if operation == "doctor":
        health = await manage("health", "--json")
        return {"message": f"engine {health['version']}"}
    if operation == "acquire":
        unknown = set(config) - set(FLAGS)
        if unknown:
            raise SandboxError(f"config has {', '.join(sorted(unknown))}: it may have {', '.join(FLAGS)}")
        flags = [word for key in FLAGS if key in config for word in (f"--{key}", str(config[key]))]
        made = await manage("create", "--json", "--quiet", "--name", desired["name"], "--tag", f"{TAG}={desired['leaseId']}", *flags)
        return {"lease": lease(made, desired)}
    if operation == "list":
        return {"leases": [lease(s, {}) for s in await manage("list", "--json") if TAG in (s.get("tags") or {})]}
    if operation == "resolve":
        status = await find(request)
        await manage("start", "--json", "--", status["name"])
        return {"lease": lease({**status, "status": "running"}, desired)}
    if operation == "release":
        await delete((await find(request))["name"])
        return {}
    if operation in ("touch", "cleanup"):
        return {}  # a sandbox has timeouts of its own, and leases that are not released are the user's
    raise SandboxError(f"operation {operation!r} is not known")


async def main():
    try:
        said = await answer(json.load(sys.stdin))
    except (SandboxError, KeyError, ValueError) as e:
        said = {"error": f"{type(e).__name__}: {e}" if not isinstance(e, SandboxError) else str(e)}
    print(json.dumps({"protocolVersion": VERSION, **said}))


if __name__ == "__main__":
    asyncio.run(main())
