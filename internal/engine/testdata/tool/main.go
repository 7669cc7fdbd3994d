// Command tool is the only program in the tests' image.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	arg := ""
	if len(os.Args) > 2 {
		arg = os.Args[2]
	}
	switch os.Args[1] {
	case "wait": // until SIGTERM
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("ready")
		fmt.Fprintln(os.Stderr, "waiting")
		<-c
		os.Exit(7)
	case "stubborn": // ignores SIGTERM
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
		time.Sleep(time.Hour)
	case "cat":
		n, err := io.Copy(os.Stdout, os.Stdin)
		fmt.Fprintln(os.Stderr, "copied", n, err)
	case "exit":
		n, _ := strconv.Atoi(arg)
		fmt.Print("out")
		fmt.Fprint(os.Stderr, "err")
		os.Exit(n)
	case "spam": // that many MiB, with stderr in between
		n, _ := strconv.Atoi(arg)
		b := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		for range n {
			os.Stdout.Write(b)
			fmt.Fprintln(os.Stderr, strings.Repeat("e", 1000))
		}
	case "hush": // closes its output and runs on
		syscall.Close(1)
		syscall.Close(2)
		time.Sleep(time.Minute)
	case "who":
		dir, _ := os.Getwd()
		fmt.Println(os.Getuid(), dir, os.Getenv("A"), os.Getenv("B"))
	}
}
