//go:build linux

package copytree

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/accounts"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Look looks at trees that nobody changes meanwhile, and prints a wire.Looked.
func Look(args []string) error {
	if len(args) != 1 {
		return errors.New("look takes one argument")
	}
	var order wire.Look
	if err := json.Unmarshal([]byte(args[0]), &order); err != nil {
		return err
	}
	looked, err := look(order)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(looked)
}

func look(order wire.Look) (looked wire.Looked, err error) {
	if err := openTrees(&order); err != nil {
		return wire.Looked{NoLayer: err.Error()}, nil
	}
	for i, t := range order.Trees {
		for _, p := range t.Paths {
			name, is := proc.WrongPath(t.Dir, p)
			if is == "" {
				continue
			}
			at := wire.WrongPath{Tree: i, Name: name, Is: is}
			content, replaced := t.Replace[p.Name]
			if !replaced || name != p.Name {
				looked.Wrong = append(looked.Wrong, at)
				continue
			}
			if err := replace(t.Dir, name, content); err != nil {
				return looked, fmt.Errorf("replace %s: %w", name, err)
			}
			looked.Replaced = append(looked.Replaced, at)
		}
		for _, name := range t.Read {
			if _, is := proc.WrongPath(t.Dir, wire.PathCheck{Name: name, Kind: wire.KindAccount}); is != "" {
				continue
			}
			if err := read(t.Dir, name, &looked); err != nil {
				return looked, err
			}
		}
	}
	return looked, nil
}

// openTrees finds the layers of trees with a mark.
func openTrees(order *wire.Look) error {
	marked := wire.Copy{Layers: order.Layers, LayerName: order.LayerName, Jobs: make([]wire.CopyJob, len(order.Trees))}
	for i, t := range order.Trees {
		marked.Jobs[i] = wire.CopyJob{From: t.Dir, FromMark: t.Mark}
	}
	if err := chooseLayers(&marked); err != nil {
		return err
	}
	for i := range order.Trees {
		order.Trees[i].Dir = marked.Jobs[i].From
	}
	return nil
}

// plain reports whether a tree has nothing wrong at any of the paths.
func plain(tree string, paths []wire.PathCheck) bool {
	for _, p := range paths {
		if _, is := proc.WrongPath(tree, p); is != "" {
			return false
		}
	}
	return true
}

// replace renames a file of a tree, on the way to which there are only directories, and puts a
// regular one of the tree's owner in its place.
func replace(tree, name, content string) error {
	var root unix.Stat_t
	if err := unix.Lstat(tree, &root); err != nil {
		return err
	}
	dir, err := os.OpenRoot(tree)
	if err != nil {
		return err
	}
	defer dir.Close()
	name = path.Clean(name)[1:]
	next := name + ".new"
	// A leftover, or what a session has put there.
	if err := dir.RemoveAll(next); err != nil {
		return err
	}
	f, err := dir.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	if err = errors.Join(err, f.Chmod(0o644), f.Chown(int(root.Uid), int(root.Gid)), f.Close()); err != nil {
		return err
	}
	for i := range 1000 {
		kept := fmt.Sprintf("%s.replaced-%d", name, i)
		if _, err := dir.Lstat(kept); !errors.Is(err, os.ErrNotExist) {
			continue
		}
		return errors.Join(dir.Rename(name, kept), dir.Rename(next, name))
	}
	return errors.New("too many replaced files are kept beside it")
}

// read returns in looked a regular file that a tree has, which proc.WrongPath has found nothing wrong with.
func read(tree, name string, looked *wire.Looked) error {
	f, err := os.Open(tree + name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, accounts.MaxSize))
	if looked.Files == nil {
		looked.Files = map[string][]byte{}
	}
	looked.Files[name] = b
	return err
}
