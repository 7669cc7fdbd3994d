package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
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
	time.Sleep(time.Hour)
	return nil
}
