# paramiko: Fabric, and Ansible's paramiko connection, are this.
import os, random, warnings
warnings.simplefilter("ignore")
import paramiko

def patient(*args, **options):
    transport = paramiko.Transport(*args, **options)
    transport.handshake_timeout = 500
    return transport

def connect():
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    key = paramiko.Ed25519Key.from_private_key_file(os.environ["KEY"])
    client.connect("127.0.0.1", int(os.environ["PORT"]), "root", pkey=key, allow_agent=False, look_for_keys=False,
                   banner_timeout=500, auth_timeout=500, transport_factory=patient)
    return client

def attempt(what, f):
    try:
        print(what, f())
    except Exception as e:
        print(what, type(e).__name__, e)

client = connect()
for command in ["echo out; echo err >&2; exit 3", "kill -9 $$", "no-such"]:
    stdin, stdout, stderr = client.exec_command(command)
    print(stdout.read(), stderr.read(), stdout.channel.recv_exit_status())
stdin, stdout, stderr = client.exec_command("sleep 1002 & exit 6")
print("at once", stdout.channel.recv_exit_status())
kill = client.exec_command("pkill -f 'sleep 1002'") # all of it is kept: a stdin that Python collects sends an EOF, maybe after the channel's end
kill[1].read()
stdin, stdout, stderr = client.exec_command("cat")
stdin.write("in and out"); stdin.channel.shutdown_write()
print(stdout.read())

there = os.environ["THERE"]
sftp = client.open_sftp()
sftp.chdir(there)
sftp.put("here/sub/b", "b")
g = random.Random(34)
names = ["a", "d", "d/e", "l", "b", "new", "no/such"]
for n in range(200):
    name, other = g.choice(names), g.choice(names)
    mode = g.choice(["r", "w", "a", "x", "r+", "a+"])
    data = g.choice(["", "x", "some more\n"]) 
    def write():
        with sftp.open(name, mode) as f:
            if mode != "r": f.write(data)
            f.seek(0)
            return f.read() if mode in ("r", "r+", "a+") else f.stat().st_size
    def chosen(call, *args):
        attempt((n, call, args), lambda: getattr(sftp, call)(*args))
    k = g.randrange(12)
    if k < 3: attempt((n, "open", name, mode, data), write)
    elif k == 3: chosen("mkdir", name, g.choice([0o755, 0o700]))
    elif k == 4: chosen(g.choice(["remove", "rmdir", "unlink"]), name)
    elif k == 5: chosen("symlink", g.choice(["a", "../x", "/tmp", "d/e", "nowhere"]), name)
    elif k == 6: chosen("readlink", name)
    elif k == 7: chosen("rename", name, other)
    elif k == 8: chosen("posix_rename", name, other)
    elif k == 9: chosen("truncate", name, g.choice([0, 3, 9]))
    elif k == 10: chosen(*g.choice([("chmod", name, 0o640), ("utime", name, (1, 1234567890)), ("chown", name, 1000, 1000)]))
    else: attempt((n, "stat", name), lambda: [(s.st_mode, s.st_uid) for s in (sftp.stat(name), sftp.lstat(name))])
    if n % 20 == 0:
        attempt((n, "list"), lambda: sorted((a.filename, a.st_mode) for a in sftp.listdir_attr(".")))
        chosen("normalize", name.split("/")[0])
client.close()
