"""A lease's life, by the protocol of crabbox's external provider, version 1."""

import json
import subprocess
import sys
import uuid

DESIRED = {"leaseId": f"cbx_{uuid.uuid4().hex[:12]}", "slug": "fast-coral", "name": f"crabbox-{uuid.uuid4().hex[:12]}"}


def ask(operation, version=1, **more):
    request = json.dumps({"protocolVersion": version, "operation": operation, "keep": False, **more})
    out = subprocess.run([sys.executable, "sandbox_crabbox.py"], input=request, capture_output=True, text=True, check=True).stdout
    said = json.loads(out)
    assert said.pop("protocolVersion") == 1, said
    return said


def ssh(lease, command):
    to = lease["ssh"]
    options = {"ProxyCommand": to["proxyCommand"], "StrictHostKeyChecking": "no", "UserKnownHostsFile": "/dev/null", "LogLevel": "ERROR", "BatchMode": "yes"}
    flags = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    return subprocess.run(["ssh", "-F", "none", *flags, "-p", to["port"], f"{to['user']}@{to['host']}", command], capture_output=True, text=True)


assert ask("doctor")["message"].startswith("engine "), "doctor"
assert "error" in ask("doctor", version=2)
assert "gpu" in ask("acquire", desired=DESIRED, config={"gpu": 1})["error"]
assert "no-such-image" in ask("acquire", desired=DESIRED, config={"image": "no-such-image:0"})["error"]
lease = ask("acquire", desired=DESIRED, config={"vcpus": 1, "memory": "512m", "network": "deny-all"})["lease"]
print(lease["name"], flush=True)
try:
    assert {k: lease[k] for k in DESIRED} == DESIRED and lease["status"] == "ready", lease
    r = ssh(lease, "echo kept >/workspace/f; id -un; exit 3")
    assert (r.returncode, r.stdout) == (3, "root\n"), r
    assert "error" in ask("acquire", desired=DESIRED, config={}), "the name is taken"
    assert lease["leaseId"] in [one["leaseId"] for one in ask("list")["leases"]]
    assert ask("touch", lease=lease) == {} == ask("cleanup")
    again = ask("resolve", desired={"leaseId": DESIRED["leaseId"]})["lease"]
    assert again["cloudId"] == lease["cloudId"] and ssh(again, "cat /workspace/f").stdout == "kept\n", again
finally:
    released = ask("release", lease=lease)
assert released == {}, released
assert "error" in ask("release", lease=lease)
assert "error" in ask("resolve", desired=DESIRED)
