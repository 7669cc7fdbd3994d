package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
)

// hold keeps a file open in each directory that has no name any more, until it is killed: hold DIR...
func hold(dirs []string) error {
	for _, dir := range dirs {
		name := filepath.Join(dir, "deleted")
		f, err := os.Create(name)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := f.Write(make([]byte, 1<<20)); err != nil {
			return err
		}
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	fmt.Println("holds")
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, os.Interrupt)
	<-ended
	return nil
}
