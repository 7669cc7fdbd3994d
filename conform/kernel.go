package conform

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox"
)

// A KernelCall is a system call that the check "kernel surface" tried inside, and what came of it:
// "allowed", or the name of an error such as EPERM.
type KernelCall struct {
	Call string `json:"call"` // such as "socket AF_INET" or "unshare user"
	Root string `json:"root"` // as root
	User string `json:"user"` // as another user
}

// families are the names of families of sockets by their numbers, which have no gap.
var families = strings.Fields(`AF_UNSPEC AF_UNIX AF_INET AF_AX25 AF_IPX AF_APPLETALK AF_NETROM AF_BRIDGE AF_ATMPVC AF_X25 AF_INET6 AF_ROSE
	AF_DECnet AF_NETBEUI AF_SECURITY AF_KEY AF_NETLINK AF_PACKET AF_ASH AF_ECONET AF_ATMSVC AF_RDS AF_SNA AF_IRDA AF_PPPOX AF_WANPIPE
	AF_LLC AF_IB AF_MPLS AF_CAN AF_TIPC AF_BLUETOOTH AF_IUCV AF_RXRPC AF_ISDN AF_PHONET AF_IEEE802154 AF_CAIF AF_ALG AF_NFC AF_VSOCK
	AF_KCM AF_QIPCRTR AF_SMC AF_XDP AF_MCTP`)

// kernelScript prints a line for each call: its name, a space, and what came of it. Each is made by a
// process of its own, which a call may change. Of a family's kinds of sockets one is enough.
const kernelScript = `use strict; use Errno; use POSIX ();
my ($arch) = (POSIX::uname())[4];
my %numbers = (
	x86_64 => {socket => 41, unshare => 272, userfaultfd => 323, bpf => 321, keyctl => 250},
	aarch64 => {socket => 198, unshare => 97, userfaultfd => 282, bpf => 280, keyctl => 219},
);
my %n = (%{$numbers{$arch} or die "no numbers of calls for $arch\n"}, io_uring_setup => 425, clone3 => 435);
sub try {
	my ($name, @args) = @_;
	pipe(my $r, my $w) or die $!;
	my $pid = fork() // die $!;
	if (!$pid) {
		my $result = syscall($n{$name}, @args);
		my $errno = $!;
		POSIX::_exit(0) if $name eq "clone3" && $result == 0; # it is the process that this one made
		my ($error) = sort grep { exists $!{$_} && $!{$_} } keys %!;
		syswrite $w, $result >= 0 ? "allowed" : $error // $errno + 0;
		POSIX::_exit(0);
	}
	close $w;
	my $text = <$r>;
	waitpid $pid, 0;
	return $text // "killed";
}
for my $family (0 .. FAMILIES) {
	my %got;
	for my $kind (1, 2, 3, 5) {
		$got{try("socket", $family, $kind, 0)} = 1;
	}
	my $answer = $got{allowed} ? "allowed" : join "/", sort keys %got;
	print "socket-$family $answer\n";
}
my %spaces = (user => 0x10000000, mount => 0x20000, network => 0x40000000, pid => 0x20000000);
for my $space (sort keys %spaces) {
	print "unshare-$space ", try("unshare", $spaces{$space}), "\n";
	my $args = pack("Q11", $spaces{$space}, 0, 0, 0, 17, (0) x 6);
	print "clone3-$space ", try("clone3", $args, 88), "\n";
}
print "clone3-none ", try("clone3", pack("Q11", 0, 0, 0, 0, 17, (0) x 6), 88), "\n";
print "io_uring_setup ", try("io_uring_setup", 1, "\0" x 120), "\n";
print "userfaultfd ", try("userfaultfd", 1), "\n";
print "bpf ", try("bpf", 0, pack("L4", 2, 4, 4, 1) . "\0" x 112, 128), "\n";
print "keyctl ", try("keyctl", 0, -3, 0), "\n";
`

// allowed are the calls that programs need. Others are denied by the seccomp profile of sandboxes.
var allowed = []string{"socket AF_UNIX", "socket AF_INET", "socket AF_INET6", "socket AF_NETLINK"}

// kernelSurface tries calls of the kernel from inside, as root and as a user.
func kernelSurface(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	if err := sb.Command(ctx, "perl", "-e", "1").Run(); err != nil {
		return missing("the image has no perl")
	}
	root, err := kernelCalls(ctx, sb, "0:0")
	if err != nil {
		return err
	}
	user, err := kernelCalls(ctx, sb, "65534:65534")
	if err != nil {
		return err
	}
	var open, closed []string
	for i, call := range root {
		if call.Call != user[i].Call {
			return fmt.Errorf("as root the call %q was tried, and as a user %q", call.Call, user[i].Call)
		}
		root[i].User = user[i].Root
		expected := slices.Contains(allowed, call.Call)
		for _, answer := range []string{call.Root, user[i].Root} {
			if answer == "allowed" && !expected && !slices.Contains(open, call.Call) {
				open = append(open, call.Call)
			} else if answer != "allowed" && expected {
				closed = append(closed, call.Call+": "+answer)
			}
		}
	}
	r.kernel = root
	if len(closed) > 0 {
		return fmt.Errorf("programs need %s", strings.Join(closed, ", "))
	}
	if len(open) > 0 {
		text := "allowed: " + strings.Join(open, ", ")
		if !r.otherKernel {
			return errors.New(text)
		}
		r.note = text
	}
	return nil
}

// kernelCalls runs the script as a user.
func kernelCalls(ctx context.Context, sb *sandbox.Sandbox, user string) ([]KernelCall, error) {
	cmd := sb.Command(ctx, "perl", "-e", strings.ReplaceAll(kernelScript, "FAMILIES", fmt.Sprint(len(families)-1)))
	cmd.User = user
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("try calls of the kernel: %w", err)
	}
	var calls []KernelCall
	for line := range strings.Lines(string(out)) {
		name, answer, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			return nil, fmt.Errorf("it printed %q", line)
		}
		call, what, _ := strings.Cut(name, "-")
		if call == "socket" {
			what = families[len(calls)]
		}
		calls = append(calls, KernelCall{Call: strings.TrimSpace(call + " " + what), Root: answer})
	}
	if len(calls) <= len(families) {
		return nil, fmt.Errorf("%d calls of the kernel were tried", len(calls))
	}
	return calls, nil
}
