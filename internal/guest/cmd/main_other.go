//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "guest: sandboxes are Linux containers; this program runs nowhere else")
	os.Exit(1)
}
