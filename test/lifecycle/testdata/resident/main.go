// Resident is what runs in sandboxes on an engine that has no image but one with this
// program.
//
//	resident serve       say "main", send back what comes to port 3000, and say "listening"
//	resident stay        say "ready", and mind no signal
//	resident env NAME... print variables
//	resident fill FILE...
//	                     write the files until there is no room left, say "full", and go
//	                     on trying, as stay
package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("what?")
	}
	args := os.Args[2:]
	switch os.Args[1] {
	case "serve":
		fmt.Println("main")
		serve()
	case "stay":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
		for {
			time.Sleep(time.Hour)
		}
	case "env":
		for _, name := range args {
			fmt.Println(os.Getenv(name))
		}
	case "fill":
		signal.Ignore(syscall.SIGTERM)
		for _, name := range args {
			fill(name)
		}
		fmt.Println("full")
		for ; ; time.Sleep(time.Millisecond) {
			fill(args[0])
		}
	default:
		log.Fatalf("%q", os.Args)
	}
}

func serve() {
	ln, err := net.Listen("tcp", ":3000")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening")
	for {
		c, err := ln.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			defer c.Close()
			io.Copy(c, c)
		}()
	}
}

func fill(name string) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		defer f.Close()
		for b := make([]byte, 1<<20); err == nil; {
			_, err = f.Write(b)
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		log.Fatal(err)
	}
}
