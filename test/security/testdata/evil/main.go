// Command evil is what a tenant wants to have run in the place of the guest. It also stands in
// for the programs of an image.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// attack prints which ways out of a container are open.
func attack() {
	try := func(what string, err error) {
		if err == nil {
			fmt.Println("open:", what)
		}
	}
	for name, family := range map[string]int{"unix": 1, "inet": 2, "netlink": 16, "packet": 17, "alg": 38, "vsock": 40} {
		_, err := syscall.Socket(family, syscall.SOCK_RAW, 0)
		try("a socket of "+name, err)
		_, err = syscall.Socket(family, syscall.SOCK_STREAM, 0)
		try("a socket of "+name, err)
	}
	for name, flag := range map[string]uintptr{"user": syscall.CLONE_NEWUSER, "mount": syscall.CLONE_NEWNS, "net": syscall.CLONE_NEWNET, "pid": syscall.CLONE_NEWPID} {
		cmd := exec.Command("/proc/self/exe", "true")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flag}
		try("a new namespace, "+name, cmd.Run())
	}
	try("a new user namespace, by unshare", syscall.Unshare(syscall.CLONE_NEWUSER))
	try("a device", syscall.Mknod("/copy/to/0/device", syscall.S_IFBLK|0o600, 7<<8))
	try("a mount", syscall.Mount("none", "/copy/to/0", "tmpfs", 0, ""))
	try("another root", syscall.Chroot("/copy"))
	try("a file of the image", os.WriteFile("/written", nil, 0o600))
	fmt.Println("that is all")
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "true" {
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "attack" {
		attack()
		return
	}
	if len(os.Args) > 2 && os.Args[1] == "fifo" {
		if err := syscall.Mkfifo(os.Args[2], 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	fmt.Printf("EVIL: %q is process %d\n", os.Args, os.Getpid())
	time.Sleep(time.Hour)
}
