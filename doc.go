// Package sandbox gives a program named, isolated, disposable Linux environments on any
// Docker Engine it can reach.
//
//	sb, err := sandbox.Create(ctx, sandbox.WithName("build-42"), sandbox.WithVCPUs(2))
//	if err != nil {
//		return err
//	}
//	defer sb.Close()
//	out, err := sb.Command(ctx, "node", "-e", "console.log(6*7)").Output()
//
// There is no server, no database and no file on the caller's disk: the engine's
// containers, volumes and labels are the only state. Two processes, or a process and its
// successor, see the same sandboxes.
//
// A sandbox is a container, not a virtual machine: it shares its kernel with the engine's
// machine. Run code that attacks kernels on an engine that has a machine of its own.
//
// # Sandboxes and sessions
//
// A sandbox has a name, a record and files, and persists. A session is one run of it,
// from start to stop. [Create] creates a sandbox and starts its first session. [Get]
// finds it by name or ID and resumes it if it is stopped. [GetOrCreate] does one or the
// other: of any number of callers in any number of processes exactly one creates the
// sandbox. [Sandbox.Stop] and [Sandbox.Close] end the session: every process gets
// SIGTERM, and SIGKILL if it has not exited after the stop timeout (30 s, see
// [WithStopTimeout]).
//
// What is kept:
//
//	                        persistent            not persistent
//	                        (default with a name) (default without)
//	Stop, then Start        files                 files
//	Close                   files                 nothing
//	the program dies        everything            nothing, 30 s later
//	WithTimeout passes      files                 nothing
//	WithIdleTimeout passes  files                 nothing
//	Detach                  everything            everything, until the session ends
//	Delete                  the volumes, unless DeleteOptions.Volumes is set
//
// Processes, files on a tmpfs and edits to /etc/hosts are lost when the session ends. A
// session continues after its main process ([WithCommand]) exits. A method that needs a
// session resumes a stopped persistent sandbox.
//
// Close is bounded and takes no context, so that it can be deferred. [Sandbox.Detach]
// releases a handle and leaves the session running.
//
// # Timeouts and updates
//
// [WithTimeout] ends every session a fixed time after its start, like Stop, even if the
// program that set it has ended: the sandbox's PID 1 enforces it, and nothing inside can
// delay it. A paused session's time goes on; if it is over, the session ends when it is
// unpaused. [Sandbox.ExtendTimeout] prolongs the current session. [Status] reports when a
// session will end and why one has ended: "stopped", "timeout", "idle timeout", "abandoned" (its
// handle did not renew the lease for 30 s), "out of memory", "network changed" (see Network
// policy), "network policy" (it could not be reached to apply one), or how PID 1 failed.
//
// [WithIdleTimeout] ends a session that nobody has used for that time: by a command, a file, a
// connection through a handle or to a published port. PID 1 enforces it as well. Handles that are
// only open don't keep the session; a detached command does, unless [IgnoreDetached] is given.
//
// What [Sandbox.Update] can change, and when the change applies:
//
//	WithTags, WithoutTag          at once
//	WithPersistent                at once
//	WithVCPUs, WithMemory         at once, and in later sessions
//	WithNetworkPolicy             at once, and in later sessions
//	WithIdleTimeout               at once, and in later sessions
//	WithStopTimeout               at once for Stop and Close, for timeouts from the next session
//	WithEnv, WithoutEnv           at once for commands, from the next session for the main process
//	WithTimeout, WithPorts        from the next session
//	WithMounts, WithoutMount      from the next session
//	WithCommand                   from the next session
//	image, runtime, user, directory, process limit, name and ID: never
//
// Ports, mounts, the main process and its environment are fixed in a container. If they
// have changed, the next session gets a new container with the files of the old one,
// which takes longer the more files are outside of volumes. If that is interrupted, the
// next process that uses the sandbox completes or reverts it.
//
// [Info.Settings] has the settings of the next session, without the values of environment
// variables, and names those that the present session does not have yet. The results of this
// package have stable names in JSON.
//
// If another tool, such as "docker start", starts the container, the session has no network
// and the timeout set at creation, and its main process waits, until a handle connects to
// it, for example through [Get].
//
// # Logs
//
// [Sandbox.Logs] reads the output of the main process and of detached commands, also of a
// stopped sandbox. It is the container's log in the engine: "docker logs" shows it too,
// where the lines of commands start with a mark and the command's ID. Package sandboxhttp
// serves it to browsers.
//
// # Commands
//
// [Sandbox.Command] returns a [Cmd], used like that of os/exec. No shell parses the
// arguments. The environment is the image's, overridden by [WithEnv], overridden by
// [Cmd.Env]; the directory is [Cmd.Dir], by default [WithWorkdir], by default /workspace.
// When the context ends, or the program dies, the command and all processes it started
// are killed. A [Cmd.Detached] command continues, and [Sandbox.Process] finds it again.
// [Sandbox.Processes] lists those of this session and earlier ones with their exit codes, which the
// sandbox's files keep, in /.agent-sandbox-processes.
//
// A handle runs its commands over one connection to the guest, a small static program
// that is mounted read-only into every sandbox, at /.agent-sandbox- and a random suffix:
// nothing in an image or a volume can have a link to a path that is unknown until the
// container exists. This package contains the guest and loads it into an engine once, so
// any Linux image works, even one without a shell.
//
// # Files
//
// [Sandbox.FS] is the file system for package io/fs. ReadFile, WriteFile, Open and
// similar methods are those of package os with a context. Names are relative to the
// working directory. The kernel inside checks permissions, for the sandbox's user or that
// of [Sandbox.FilesAs]. [Sandbox.WriteFile] is atomic. [Sandbox.CopyIn] and
// [Sandbox.CopyOut] copy files and trees, in constant memory, and list in a [CopyReport]
// what they could not preserve. CopyOut never writes outside of its destination, whatever
// the sandbox sends.
//
// The files of a stopped sandbox are read through the engine, as root, without starting
// it.
//
// # Ports and connections
//
// [Sandbox.DialContext] connects to any server inside, over the connection that commands
// use. It needs no published port and fits an http.Transport. [Sandbox.WaitPort] waits
// until a server listens. [WithPorts] publishes ports on 127.0.0.1 of the engine's
// machine, for clients without a handle. The published port changes with every session;
// [Sandbox.Port] returns it.
//
// [Sandbox.SSH] connects to an SSH server inside. The command "sandbox proxy NAME" does
// the same as OpenSSH's ProxyCommand, so that ssh, scp, sftp, rsync and git work with a
// sandbox.
//
// # Network policy
//
// [WithNetworkPolicy] says what a sandbox may connect to: [AllowAll], the default,
// [PublicOnly], [DenyAll], or names and subnets. The policy also applies to root inside,
// from the first instruction of every session: PID 1 locks the network before it starts
// anything, and opens it when it receives the policy. [Sandbox.Update] changes the policy
// of a running session, or ends the session if that can't be reached, and
// [Sandbox.Egress] lists what the sandbox attempted. Under every policy a sandbox accepts
// connections to published ports, and no others, and not from its neighbours in the
// engine's networks, so sandboxes can't reach each other.
//
// The engine gives a process that it starts in a container the capability NET_ADMIN, and
// the process runs the sandbox's programs. This is what "docker exec" does, the Exec tab of
// Docker Desktop, Portainer, an editor that attaches to a container, and monitoring agents.
// If root inside has replaced the shell, the policy is then in its hands: use
// [Sandbox.Command], [Sandbox.SSH] or "sandbox exec" instead. PID 1 ends the session
// ("network changed" in [Status]) when another process changes nftables rules, network
// devices, addresses, routes or traffic control; from Linux 6.9 on its own rules can't be
// changed by others at all. It can't notice a process that only marks its packets as PID
// 1's: if the policy allows names, these packets reach every address that is neither
// denied nor protected. A network must be connected to a sandbox that is stopped: "docker
// network connect" changes a running one, too.
//
// Names are matched by what a connection declares (SNI, Host). Allowing a name therefore
// allows everything that its server forwards to: an allowed content network can lead to
// whatever it hosts, and a domain whose owner cooperates can carry data out in names. The
// headers that PID 1 sets in requests ([Transform]), or that this program sets in each
// ([Transform.Do], for signatures and tokens that expire), enter the sandbox only if a server
// sends them back, but programs inside can use them while it runs.
//
// No process inside can have the capability NET_RAW, which Debian's ping and tcpdump
// need. For ping remove it from the file: after "setcap -r /usr/bin/ping" it uses the
// kernel's ICMP sockets, if the policy allows ICMP. PID 1 uses nftables. If the engine's
// kernel or runtime (for example gVisor) lacks it, creating a sandbox fails with
// [ErrUnsupported], except with [DenyAll] and [WithOCIRuntime]; [CheckSupport] reports that
// beforehand. A sandbox never runs unfiltered.
//
// # Volumes
//
// Every sandbox has a volume of its own at /workspace. [WithMounts] adds others: a
// directory, a copy of a directory, which is the default and never changes the directory,
// or a volume preserved from an earlier sandbox. A directory is copied before anything
// runs in the sandbox, by the engine if it can see the directory, otherwise through this
// program; the result is the same. Numeric owners are kept. A target may lead through
// symbolic links of the image: the mount is made at the path that they lead to, and
// [Sandbox.Mounts] says that one. No mount follows any other link: where a session, a source
// or a volume has a link, a file or a pipe on the way to a target, the start fails with
// [ErrInvalidArgument] and names it, and an update with [WithoutMount] keeps all files.
// Before each start the ways to the files that the engine itself opens or mounts are checked,
// too: in an image /etc/passwd and /etc/group must be regular files of at most 4 MiB; what a
// session has put in their place is renamed, and replaced by a file that lists root only.
//
// A directory that the image declares as a volume (VOLUME in a Dockerfile) is a volume of the
// sandbox, too, with the files that the image has there. Forks, snapshots and rollbacks have its
// files, [Delete] preserves it, and [WithID] adopts it with the workspace. A mount at its target
// takes its place: an update that adds one leaves the volume behind, orphaned.
//
// [ListVolumes] reports which
// sandboxes use each volume, derived from the existing containers, and its size. [Delete]
// preserves volumes by default. They are then orphaned, and can be attached again, or
// removed one by one ([DeleteVolume]) or together ([CleanupOrphanedVolumes]). Volumes are
// local to the engine; the driver option size=0 protects them from "docker volume prune".
// Nothing protects the rest: "docker container prune" removes stopped sandboxes, with their
// files outside of volumes, and "docker image prune -a" the images of snapshots. A snapshot
// gets its image again if that is on the engine or can be pulled unchanged; if the engine had
// to commit files for the snapshot they are lost, and [FromSnapshot] is [ErrImageNotFound].
//
// # Forks and snapshots
//
// [Fork] creates a sandbox with the current files of another one, [ForkN] several with
// the files of one moment, and [Sandbox.Snapshot] stores the files for [FromSnapshot].
// They are copied on the engine's disk, including the container's own files outside of
// volumes. No layer is added to an image, so a fork of a fork of a fork costs no more
// than the first. Engines whose storage driver is no overlay, such as vfs, btrfs and zfs,
// commit them.
//
// PID 1 holds the processes of a running source during the copy, for the helper that copies: it
// stops all of them, except itself and the servers of handles, and lets them go on when the helper
// has copied the last file, ends, or is silent for 10 s. The helper ends when this program ends or
// is silent for 10 s. Processes that were stopped before stay so. Commands that are started
// meanwhile, and writes of handles, wait; timeouts, leases and policies are in force. What has run
// all the same, such as "docker exec", makes the copy start again. Where PID 1 can't hold them (its
// session is of an earlier version, a process is blocked in the kernel, a program continues what is
// stopped) the engine pauses the container. A marker with a lease records which process paused it;
// if that process dies, the next one that finds the marker unpauses the source.
//
// [Sandbox.Rollback] makes the files of a sandbox those of a snapshot: either all of them, or
// none if it fails before it has removed the old container. From then on it can't be reverted,
// and a call that needs the files completes it if its process has died.
//
// Volumes made from a snapshot are overlays over its files, if the engine can mount
// overlays. Docker does not track this dependency: "docker volume rm" removes a
// snapshot's files while overlays use them; this package refuses to. The kernel does not
// mount an overlay again while a copy of its previous mount exists: a start waits 30 s
// for containers that are just starting. A container that has all of the machine's files
// mounted keeps such copies for as long as it runs, and the error says so. The
// container's own files are copied into each new sandbox, and not stored if none were
// changed; only the times of the directory / are then new.
//
// # Traces, durations and an audit log
//
// Calls make OpenTelemetry spans through the global provider, if the program has set one:
// "sandbox.create", "sandbox.command" and so on, with the waits in them: "sandbox.wait." and
// slot, pull, copy, pause, connect, hook or other. The last is for another caller, of any program,
// that creates, changes or copies the sandbox, or until it is certain that it has died.
// "sandbox.hold" is the time in which the processes of a source stand still. The engine's calls are
// spans within these. Every function and method that takes a context makes one, except those that
// read or write single files. Attributes are sandbox.name, sandbox.id,
// sandbox.source, container.id, container.image.name, process.exit.code and error.type; none
// has an argument of a command, an environment, or the text of an error. The histogram
// sandbox.operation.duration has the durations, by sandbox.operation, the name of the span, and
// error.type. The span of a command lasts from Start to Wait, that of a detached one only for
// its Start. Spans that are open when the program dies are lost. [WithAudit] logs commands.
//
// # State in the engine
//
// Names and labels are a contract; other tools may read them.
//
//	container  agent-sandbox-<name>             one sandbox
//	volume     agent-sandbox-<id>               its workspace, at /workspace
//	volume     agent-sandbox-<id>-rwcopy-<hash> a copy of a directory, for this sandbox
//	volume     agent-sandbox-<id>-fork-<hash>   a fork's copy of such a copy
//	volume     agent-sandbox-<id>-image-<hash>  a directory that the image declares as a volume
//	volume     agent-sandbox-<id>.rev-<n>       a revision: updated settings; the highest n is current.
//	                                            A number can be missing, or have the contents of a later one
//	container  agent-sandbox-<name>.U, .N       a replacement: unfinished, and about to take the name
//	image      agent-sandbox-layer:<nonce>      the files of a container that was replaced or forked
//	volume     agent-sandbox-snap-<id>          a snapshot; with -<n> its files, which never change
//	image      agent-sandbox-snapshot:<id>      the image for sandboxes from that snapshot
//	volume     <volume>.U, <volume>.W           upper and work directory of an overlay over a snapshot
//	volume     agent-sandbox-pending.<name>…    a marker: the sandbox is being created, changed or deleted
//	volume     agent-sandbox-sweep.S<n>         the minute of the last sweep
//	volume     agent-sandbox-guest-<hash>       the guest, shared by all sandboxes and kept
//	image      agent-sandbox-guest:<hash>       the image that this volume is filled from
//	container  agent-sandbox-helper.<…>         a short-lived helper
//
// All have the label agent-sandbox.managed=true; objects without it are never listed,
// adopted or removed. Further labels, each with the prefix "agent-sandbox.":
//
//	schema       version of this table: 1
//	role         sandbox, workspace, rwcopy, fork, image, layer, snapshot, frozen, overlay, pending, takeover, guest,
//	             helper, revision, sweep
//	id, name     of the sandbox
//	created-at   RFC 3339 with nanoseconds, by the engine's clock
//	persistent   true or false
//	tag.<key>    one tag, if the record lists its key: the engine adds the labels of the image
//	record       JSON: tags (their keys), image, runtime, user, workdir, command, ports,
//	             mounts, declared, timeout_ms, stop_timeout_ms, idle, network, source, snapshot, fork_of,
//	             new_privileges, storage_bytes, rollback; of a revision: the changed settings, the
//	             environment encrypted; of a snapshot: its description
//	created-by   of a copy: rwcopy or fork; of a volume that an image declares: image
//	source       of a copy: the directory, on the machine of its creator; of a volume that an image
//	             declares: its path in the sandbox
//	snapshot     of an overlay: the snapshot whose files it uses; of a container that a rollback
//	             created: the snapshot, which is needed until it has the sandbox's name
//	nonce        the operation that created the object
//	control-key  signs requests to the sandbox's PID 1; never inside the sandbox
//	of, after    of a revision: the nonces of its sandbox and of the previous revision; of a marker:
//	             the nonce of the sandbox that is being changed
//	by, after    of a replacement: the change, and the container that it replaces
//	until        of a marker or helper: when its lease ends; of a sweep: when the next one is due
//	deletes      of a marker: true if the sandbox is being deleted
//	holder       of a marker or a sweep: its creator, for people
//
// Creating a volume whose name exists returns the old volume with its old labels. Each
// process adds a nonce, so of any number exactly one creates the marker, and only that
// one creates the sandbox. It renews the marker's lease. If it dies, another process
// takes over once the lease of 30 s has ended and 12 s later has still not been renewed, and
// removes its leftovers. A program whose own lease ends, because the engine does not answer or
// the machine slept, gives the creation up.
//
// What crashed programs left is removed by sweeps: unfinished sandboxes, sandboxes that are not
// persistent and whose handle is gone, and whatever no sandbox uses any more. Sweeps list all
// sandboxes and volumes. Create, List and changes of settings start one in the background if
// none was started on this engine, by any program, within the current minute by the engine's
// clock; no call waits for it. [Client.Close] ends it, and leaves the rest and the turn to the
// next program. So programs that live shortly, such as command-line tools, are not delayed, and
// sweep while they create or list; but only a program that runs for 15 s takes over from a
// creator that died, if nobody creates a sandbox of that name. [Prune] sweeps at once, and
// waits for that.
//
// Calls about one sandbox, volume or snapshot list nothing: they take as long with ten thousand
// others on the engine. Exceptions are those that need to know users which only a list has:
// the creation of a sandbox with the workspace of a deleted one ([WithID]), Get by the ID of
// such a sandbox, a resume with a mount inside of another volume, [Sandbox.Rollback],
// [GetSnapshot], the removal of snapshots ([DeleteSnapshot], [SnapshotOptions]) and of volumes that
// share files with others of one [ForkN], and the report of a volume that the engine refuses to
// remove.
//
// # Defaults
//
// Image node:20-bookworm, 1 CPU, 2048 MiB of memory for each CPU and no swap, 4,096
// processes ([WithPidsLimit]), the engine's default OCI runtime ([WithOCIRuntime]), and
// a log of at most 3 files of 10 MB. The capabilities NET_RAW and
// MKNOD are dropped; only PID 1 has NET_ADMIN. An image's HEALTHCHECK is disabled, since
// it would run outside of PID 1's rules.
//
// The seccomp profile is the default one of current Docker engines, cut: sockets have the family
// AF_UNIX, AF_INET, AF_INET6 or AF_NETLINK, and 32-bit programs for x86 can't make any by
// socketcall(2). Namespaces, io_uring, bpf, keyctl and userfaultfd are denied, to processes of
// "docker exec" as well. An engine that was configured with a profile of its own keeps that.
// docs/kernel.md has a list of programs that notice.
//
// The size of core files is limited to 0, in sandboxes and helpers. Commands and main
// processes of users other than root gain no privileges from setuid programs such as sudo,
// nor from file capabilities ([WithNewPrivileges]).
//
// Root inside can raise PID 1's oom_score_adj. If memory then runs out the session ends;
// no process outlives PID 1.
//
// # What is not isolated
//
// A sandbox has its own limits of CPU, memory and processes. The rest of the engine's
// machine it shares with other sandboxes, and can use up or reach:
//
//   - The kernel: whoever breaks it is on the engine's machine. [WithOCIRuntime] selects a
//     runtime with a kernel of its own.
//   - Disk space and inodes of the engine's volumes and layers. [WithStorageSize] limits what
//     is outside of volumes; for volumes, give the engine a disk of its own.
//   - Inotify instances and watches, which the kernel counts by user: root of every sandbox
//     is root of the machine there. The same goes for pages of pipes.
//   - Pseudo-terminals (sysctl kernel.pty.max), requests of asynchronous I/O (fs.aio-max-nr),
//     and open files of the whole machine (fs.file-max).
//   - The machine's table of connections (nf_conntrack_max). If it is full, new connections of
//     everybody fail. [DenyAll] opens none.
//   - The program that handles core dumps. If sysctl kernel.core_pattern begins with "|", the
//     kernel runs that program, as root of the engine's machine, for whatever crashes inside.
//     systemd-coredump stores nothing for a limit of 0, as sandboxes have. On an engine for
//     hostile programs set the pattern to a file name.
//   - I/O bandwidth of disks and networks.
//   - Directories that [WithMounts] mounts writable: a program inside can leave files with the
//     setuid bit there, owned by root if it is root. Mount with nosuid on the machine what
//     others there can execute.
//
// # Lost connections
//
// A network that drops packets, or a laptop that changes networks, loses connections without
// a word. A call whose context has a deadline ends with that. Others return
// [ErrEngineUnavailable] (File.Close may return nil), at the latest after:
//
//	a command, files and connections of a handle  12 s if the engine still answers new calls, otherwise 22 s
//	a command that is waited for, with no output  10 s more
//	File.Close                                    5 s
//	Signal, Kill, Resize                          30 s
//	what connects to the guest for the first time 30 s
//	Close                                         the stop timeout and 15 s
//	Create, Get, List and others                  30 s, and 60 s more if they undo what they have done
//
// If the program does not run on Linux, a request that is lost on tcp:// can take minutes: as long
// as the system repeats it. A sandbox that is paused is waited for. The commands of a program that
// vanished end within 90 s.
//
// Over ssh:// each call in progress, and each handle that runs commands, has an ssh process; calls
// use the processes of earlier ones. Up to eight of them are sessions of one connection, of an ssh
// process with a control socket (ControlMaster) that ends after the last one. For those that the
// server allows no session (MaxSessions) ssh connects anew. The sockets are in private directories
// in [os.TempDir], which this package removes. The processes of a program that is killed, or ends
// without [Client.Close], end, too; its directories, then empty, are removed by the next program
// that starts more than an hour later.
//
// Each process has a connection of its own if ssh's configuration has a ControlPath for the host,
// which is then used as configured; if the path of [os.TempDir] has more than about 60 bytes, or
// characters other than letters, digits and "._-/"; and on Windows.
//
// # Errors
//
// Every error is an *[Error], which says where it happened, or an *[ExitError] of a
// command that failed. Test for the sentinels ([ErrNotFound], [ErrExists],
// [ErrEngineUnavailable] …) with errors.Is; the engine's own error stays in the chain.
package sandbox
