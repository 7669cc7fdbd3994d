// Package sandbox gives a program named, isolated, disposable Linux environments on
// any Docker Engine it can reach.
//
//	sb, err := sandbox.Create(ctx, sandbox.WithName("build-42"), sandbox.WithVCPUs(2))
//	if err != nil {
//		return err
//	}
//	defer sb.Close()
//	out, err := sb.Command(ctx, "node", "-e", "console.log(6*7)").Output()
//
// There is no server of ours, no database and no file on the caller's disk: the
// engine's containers, volumes and labels are the only state. Two processes, or a
// process and its successor, see the same sandboxes.
//
// A sandbox is a container, not a virtual machine: it shares its kernel with the
// engine's machine. Run code that attacks kernels on an engine that has a machine of
// its own.
//
// # Sandboxes and sessions
//
// A sandbox is the durable thing: a name, a record, files. A session is one run of
// it, from start to stop. [Create] makes a sandbox and starts its first session;
// [Get] finds it by name or ID and resumes it when it is stopped; [GetOrCreate] does
// whichever is needed, and of any number of callers in any number of processes
// exactly one creates it. [Sandbox.Stop] and [Sandbox.Close] end the session: every
// process in it gets SIGTERM, and SIGKILL when it is still there after the stop
// timeout (30 s unless [WithStopTimeout] says otherwise).
//
// What survives what:
//
//	                        persistent            not persistent
//	                        (default with a name) (default without)
//	Stop, then Start        files                 files
//	Close                   files                 nothing
//	the program dies        everything            nothing, 30 s later
//	WithTimeout passes      files                 nothing
//	Detach                  everything            everything, until the session ends
//	Delete                  the volumes, unless PreserveVolumes(false)
//
// Processes, /tmp on a tmpfs and edits to /etc/hosts end with the session. A session
// outlives its main process ([WithCommand]): a sandbox is an environment, not a job.
// A method that needs a session resumes a persistent sandbox that has none.
//
// A handle's Close is bounded and takes no context, so that it can be deferred.
// [Sandbox.Detach] is for who wants the session to go on.
//
// # Timeouts and changes
//
// [WithTimeout] ends every session so long after its start, as Stop does, also when the
// program that set it is gone: the sandbox's own PID 1 sees to it, and nothing inside
// can make it later. Time goes on while a session is paused; it then ends when it is
// unpaused. [Sandbox.ExtendTimeout] gives the present session more. [Status] tells when
// a session ends and why one has ended: "stopped", "timeout", "abandoned" (its handle
// was not heard of for 30 s), "out of memory", or how PID 1 failed.
//
// What [Sandbox.Update] changes, and from when on:
//
//	WithTags                  at once
//	WithVCPUs, WithMemory     at once, and in sessions to come
//	WithStopTimeout           at once for Stop and Close, for timeouts from the next session
//	WithEnv                   at once for commands, from the next session for the main process
//	WithTimeout, WithPorts    from the next session
//	WithMounts, WithCommand   from the next session
//	image, runtime, user, directory, process limit, name and ID: never
//
// Ports, mounts, main process and environment are the container's. When they have changed
// the next session gets a new container, with the files of the old one; that takes longer
// the more of them are outside of volumes. When it is interrupted, whoever comes next
// completes it or takes it back.
//
// A session that is started with other tools, such as "docker start", has no network and
// no main process, and the timeout that the sandbox was made with, until a handle
// connects to it; a [Get] sees to that.
//
// # Logs
//
// [Sandbox.Logs] reads what the main process and detached commands have written, also
// when the sandbox is stopped. It is the container's log in the engine: "docker logs"
// shows it, too, where lines of commands begin with a mark and the command's ID.
// Package sandboxhttp serves it to browsers.
//
// # Commands
//
// [Sandbox.Command] returns a [Cmd], used as the one of os/exec is. Arguments are
// never parsed by a shell. The environment is the image's, overridden by [WithEnv],
// overridden by [Cmd.Env]; the directory [Cmd.Dir], else [WithWorkdir], else
// /workspace. When the context ends, or the program dies, the command and everything
// it started are killed; one that is [Cmd.Detached] goes on and is found again with
// [Sandbox.Process].
//
// Commands go over one connection for each handle, to a small static program that is
// mounted read-only into every sandbox at /.agent-sandbox. It is part of this package
// and is loaded into an engine once: any Linux image works, one without a shell too.
//
// # Files
//
// [Sandbox.FS] is the file system for package io/fs. ReadFile, WriteFile, Open and
// their like are those of package os with a context first; relative names begin at
// the working directory, and what is allowed is up to the kernel inside, for the
// sandbox's user or the one of [Sandbox.FilesAs]. [Sandbox.WriteFile] replaces a file
// whole or not at all. [Sandbox.CopyIn] and [Sandbox.CopyOut] carry files and trees,
// in constant memory; what they could not keep is in their [CopyReport]. Nothing a
// sandbox says makes CopyOut write outside of its destination.
//
// Reading a stopped sandbox does not start it; it goes through the engine, as root.
//
// # Ports and dials
//
// [Sandbox.DialContext] connects to any server inside, over the same connection as
// commands; no port is published for it, and it fits an http.Transport.
// [Sandbox.WaitPort] returns when a server listens. [WithPorts] publishes ports on
// 127.0.0.1 of the engine's machine for those who have no handle; which port of the
// machine it is changes with every session, and [Sandbox.Port] looks it up.
//
// [Sandbox.SSH] is a connection to an SSH server inside, and the command
// "sandbox proxy NAME" the same for OpenSSH's ProxyCommand: ssh, scp, sftp, rsync and
// git work with a sandbox.
//
// # Network
//
// [WithNetworkPolicy] says what a sandbox may reach: [AllowAll], the default,
// [PublicOnly], [DenyAll], or names and subnets. It holds for root inside, from the first
// instruction of every session: PID 1 locks the network before it starts anything, and
// waits to be told which policy counts. [Sandbox.Update] changes it while the session
// runs, and [Sandbox.Egress] tells what was tried. Under every policy nothing comes in
// but by published ports, which answer under every policy, and sandboxes don't reach each
// other. Names are matched by what a connection says it is for (SNI, Host), so allowing a
// name allows what its server forwards to: an allowed content network can lead on to
// whatever it hosts, and a domain whose owner helps can carry data out in names. What
// PID 1 sets in requests ([Transform]) never enters the sandbox, but whoever runs in it
// can use it while it runs.
//
// No process inside can have the capability NET_RAW, which "ping" of Debian and tcpdump
// want. For ping remove it from the file: "setcap -r /usr/bin/ping" and ICMP sockets of
// the kernel do the rest, where the policy lets ICMP through. PID 1 uses nftables; where
// the engine's kernel or runtime (gVisor, for one) has none, making a sandbox fails with
// [ErrUnsupported], and [CheckSupport] says so beforehand. It never runs unfiltered.
//
// # Volumes
//
// A sandbox has one volume of its own at /workspace, always. [WithMounts] adds others: a
// directory as it is, a copy of one, which is the default and leaves the directory
// alone, or a volume that an earlier sandbox left. A copy is made before anything runs in
// the sandbox, by the engine when it can see the directory, else through this program;
// the result is the same. Owners are kept by number. [ListVolumes] tells who uses which
// volume, which follows from the containers that are there, and what it takes of the
// disk. [Delete] preserves volumes unless told otherwise: they are then orphaned, and
// attached again, removed one by one ([DeleteVolume]) or together
// ([CleanupOrphanedVolumes]). Volumes are local to the engine; the driver option size=0
// keeps "docker volume prune" away from them.
//
// # Forks and snapshots
//
// [Fork] makes a sandbox with the files another one has at this instant, [ForkN] any number
// of one instant, and [Sandbox.Snapshot] stores them for [FromSnapshot]. They are copied on
// the engine's disk, also what the container has outside of volumes: no layer is added to
// an image, so a fork of a fork of a fork is like any other. Engines whose storage driver
// shows no container's own files (others than overlay2 and fuse-overlayfs) commit them.
//
// A running source is paused meanwhile. A marker with a lease says by whom; when its maker
// dies, who finds it next unpauses the source. Volumes made from a snapshot are overlays
// over its files where the engine mounts them. The engine does not know that; this package
// removes no files that something stands on, and "docker volume rm" would. Nor does the
// kernel mount one again while a copy of its last mount is left: a start waits 10 s for
// containers that begin just then; one that has all of the machine's files mounted keeps
// such copies for as long as it runs, and the error says so. What the
// container has outside of volumes is copied into each new one, and not kept at all when
// nothing was changed there; the time of the directory / alone is then the new one's own.
//
// # State in the engine
//
// Names and labels are a contract; other tools may read them.
//
//	container  agent-sandbox-<name>            one sandbox
//	volume     agent-sandbox-<id>              its workspace, at /workspace
//	volume     agent-sandbox-<id>-rwcopy-<hash> a copy of a directory, of its own
//	volume     agent-sandbox-<id>.rev-<n>      what has changed of it; the highest n counts
//	container  agent-sandbox-<name>.U, .N      exists while it takes the place of that
//	image      agent-sandbox-layer:<nonce>     the files of a container that was replaced or forked
//	volume     agent-sandbox-<id>-fork-<hash>  a copy of a copy that another sandbox has
//	volume     agent-sandbox-snap-<id>         a snapshot; and with -<n> its files, which never change
//	image      agent-sandbox-snapshot:<id>     what containers are made from by it
//	volume     <volume>.U, <volume>.W          what a volume that stands on a snapshot's files has of its own
//	volume     agent-sandbox-pending.<name>…   exists while the sandbox is being made, changed or deleted
//	volume     agent-sandbox-guest-<hash>      the static program, shared and kept
//	image      agent-sandbox-guest:<hash>      what that volume is filled from
//	container  agent-sandbox-helper.<…>        exists for the moment of that
//
// All carry agent-sandbox.managed=true; nothing without it is ever listed, adopted or
// removed. Further labels, each with the prefix "agent-sandbox.":
//
//	schema       version of this table: 1
//	role         sandbox, workspace, rwcopy, fork, layer, snapshot, frozen, overlay, pending, takeover, guest,
//	             helper, revision
//	id, name     of the sandbox
//	created-at   RFC 3339 with nanoseconds, by the engine's clock
//	persistent   true or false
//	tag.<key>    one tag
//	record       JSON: image, runtime, user, workdir, command, ports, mounts, timeout_ms,
//	             stop_timeout_ms, source, snapshot; of a revision: what has changed, the
//	             environment encrypted
//	created-by   of a copy: rwcopy
//	source       of a copy: the directory, on the machine of its maker
//	nonce        which operation made the object
//	control-key  signs what is asked of the sandbox's PID 1; never inside the sandbox
//	of, after    of a revision: the nonces of its sandbox and of the one before; of a marker:
//	             the nonce of the sandbox that is being changed
//	by, after    of a container made for a change: the change, and the container before
//	until        of a marker or helper: when its maker counts as dead
//	holder       of a marker: its maker, for people to read
//
// Creating a volume whose name exists returns the old one with its old labels. With a
// nonce among them, exactly one of any number of processes makes the marker, and that
// one is the creator. It renews the marker; when it dies, another takes over after
// 30 s and clears what it left.
//
// # Defaults
//
// Image node:20-bookworm, 1 CPU, 2048 MiB of memory for each CPU and no swap, 4096
// processes ([WithPidsLimit]), the engine's default OCI runtime ([WithOCIRuntime]) and
// seccomp profile, a log of at
// most 3 files of 10 MB. The capabilities NET_RAW and MKNOD are dropped. PID 1 keeps NET_ADMIN for itself; nothing else in the sandbox can have
// it. An image's HEALTHCHECK is switched off: it would run beside PID 1's rules.
// Engines before 23 have a default seccomp profile that lets sockets of AF_VSOCK through,
// which lead past every network to the hypervisor. From a program on Linux such an engine
// is given the default profile of later ones instead, unless it was set up with one of its
// own; what these refuse besides are AF_ALG sockets and io_uring.
//
// Root inside can raise PID 1's oom_score_adj, and so have the session end, not outlive
// anything, when memory runs out: with PID 1 everything ends.
//
// # Errors
//
// Every error is an *[Error] that says where it happened, or an *[ExitError] of a
// command that did not succeed. Test for the sentinels ([ErrNotFound], [ErrExists],
// [ErrEngineUnavailable] …) with errors.Is; what the engine said stays reachable.
package sandbox
