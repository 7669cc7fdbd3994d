// Deep makes a chain of directories below each directory that is named: deep LEVELS DIR...
package main

import (
	"log"
	"os"
	"strconv"
	"syscall"
)

func main() {
	levels, err := strconv.Atoi(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	for _, dir := range os.Args[2:] {
		if err := syscall.Chdir(dir); err != nil {
			log.Fatal(err)
		}
		for range levels {
			if err := syscall.Mkdir("d", 0o755); err != nil {
				log.Fatal(err)
			}
			if err := syscall.Chdir("d"); err != nil {
				log.Fatal(err)
			}
		}
	}
}
