// Cluster makes sandboxes on the nodes of a Docker Swarm, finds them by their names, and says where
// they are. The engine, at DOCKER_HOST or in the current Docker context, is a manager of the swarm. To
// make a swarm of one or more machines:
//
//	docker swarm init --advertise-addr ADDRESS    # on the first machine
//	docker swarm join-token manager               # prints the command for the others
//
// docs/cluster.md says who may reach the engines.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox"
)

func main() {
	log.SetFlags(0)
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) (err error) {
	client, err := sandbox.NewClient(sandbox.WithSwarm())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()

	// Where there is most room each time. WithPlacement names nodes by their labels, names or roles.
	names := []string{"cluster-a", "cluster-b", "cluster-c"}
	defer func() {
		for _, name := range names {
			_, deleted := client.Delete(ctx, name, sandbox.DeleteOptions{Volumes: true})
			if !errors.Is(deleted, sandbox.ErrNotFound) {
				err = errors.Join(err, deleted)
			}
		}
	}()
	g, gctx := errgroup.WithContext(ctx)
	for _, name := range names {
		g.Go(func() error {
			sb, err := client.GetOrCreate(gctx, name)
			if err != nil {
				return err
			}
			// A stream goes from here to the node's engine, past the manager.
			err = sb.Command(gctx, "sh", "-c", "echo \"made as $0\" >note", name).Run()
			return errors.Join(err, sb.Detach())
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}

	// Any program, on any machine, finds them by their names.
	for _, name := range names {
		sb, err := client.Get(ctx, name)
		if err != nil {
			return err
		}
		st, err := sb.Status(ctx)
		if err != nil {
			return errors.Join(err, sb.Detach())
		}
		note, err := sb.ReadFile(ctx, "note")
		if err = errors.Join(err, sb.Detach()); err != nil {
			return err
		}
		fmt.Printf("%s is on %s: %s", name, st.Location, note)
	}
	return nil
}
