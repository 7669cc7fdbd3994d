package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

func (a *app) describeCommand() *cobra.Command {
	c := &cobra.Command{
		Use:               "describe NAME...",
		Aliases:           []string{"show"},
		Short:             "Print the details of sandboxes, for people, without resuming them",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.sandboxes,
	}
	var asJSON bool
	c.RunE = func(c *cobra.Command, names []string) error {
		all, err := a.inspectAll(c.Context(), names)
		if asJSON {
			return errors.Join(err, printJSONList(a.stdout, all))
		}
		for i, st := range all {
			if i > 0 {
				_, e := fmt.Fprintln(a.stdout)
				err = errors.Join(err, e)
			}
			err = errors.Join(err, printDetails(a.stdout, st))
		}
		return err
	}
	jsonFlag(c, &asJSON)
	return c
}

// A description is lines of a label and a value.
type description [][2]string

// add adds a line for each value that is not empty. The label is in the first of them.
func (d *description) add(label string, values ...string) {
	for _, value := range values {
		if value != "" {
			*d = append(*d, [2]string{label, value})
			label = ""
		}
	}
}

// printDetails prints what there is of a sandbox's details.
func printDetails(w io.Writer, st sandbox.Status) error {
	var d description
	s := st.Settings
	d.add("Name", st.Name)
	d.add("ID", st.ID)
	d.add("Status", strings.TrimSuffix(fmt.Sprintf("%s (%s)", st.State, st.Reason), " ()"))
	d.add("Created", since(st.CreatedAt))
	d.add("Started", since(st.StartedAt))
	d.add("Ended", since(st.EndedAt))
	d.add("Expires", at(st.ExpiresAt))
	d.add("Idle until", at(st.IdleExpiresAt))
	d.add("Engine", st.Location)
	d.add("Image", strings.TrimSuffix(fmt.Sprintf("%s (%s)", st.Image, value(s.Runtime)), " ()"))
	d.add("Source", st.Source)
	d.add("User", cmp.Or(value(s.User), "root"))
	d.add("Directory", value(s.Workdir))
	d.add("Command", strings.Join(s.Command, " "))
	d.add("Limits", limits(s))
	d.add("Timeouts", timeouts(s))
	d.add("Kept", map[bool]string{true: "until it is deleted", false: "until its session ends"}[value(s.Persistent)])
	d.add("Network", st.Network.String())
	if e := st.Egress; e != nil {
		d.add("Egress", fmt.Sprintf("%d allowed, %d blocked", e.Allowed, e.Blocked))
	}
	d.add("Ports", portList(st.Ports))
	d.add("Environment", strings.Join(st.Env, ", "))
	d.add("Tags", tagList(st.Tags))
	d.add("Workspace", volumeText(st.Workspace))
	for i, v := range st.Volumes {
		d.add(map[bool]string{true: "Volumes"}[i == 0], v.Source+": "+volumeText(v))
	}
	var mounts []string
	for _, m := range s.Mounts {
		mounts = append(mounts, m.String())
	}
	d.add("Mounts", mounts...)
	if u := st.Usage; u != nil {
		d.add("Usage", fmt.Sprintf("%.0f%% CPU, %s of memory, %s", u.CPUPercent, bytesText(u.MemoryBytes), count(int64(u.Processes), "process")))
	}
	d.add("Next session", strings.Join(st.Pending, ", "))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range d {
		fmt.Fprintf(t, "%s\t%s\n", line[0], graphic(line[1]))
	}
	return t.Flush()
}

// since is a time for people; empty for none.
func since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return at(t) + " (" + ago(t) + ")"
}

func at(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format(time.DateTime)
}

func limits(s sandbox.Settings) string {
	var parts []string
	if s.VCPUs != nil {
		parts = append(parts, strconv.FormatFloat(*s.VCPUs, 'f', -1, 64)+" CPUs")
	}
	if s.MemoryBytes != nil {
		parts = append(parts, bytesText(*s.MemoryBytes)+" of memory")
	}
	if s.PidsLimit != nil {
		parts = append(parts, count(int64(*s.PidsLimit), "process"))
	}
	if s.StorageBytes != nil {
		parts = append(parts, bytesText(*s.StorageBytes)+" outside of volumes")
	}
	if len(s.GPUs) > 0 {
		parts = append(parts, "GPUs "+strings.Join(s.GPUs, " "))
	}
	return strings.Join(parts, ", ")
}

func timeouts(s sandbox.Settings) string {
	var parts []string
	if d := value(s.Timeout); d > 0 {
		parts = append(parts, fmt.Sprintf("%v for a session", d))
	}
	if d := value(s.IdleTimeout); d > 0 {
		parts = append(parts, fmt.Sprintf("%v idle", d))
	}
	return strings.Join(append(parts, fmt.Sprintf("%v to stop", value(s.StopTimeout))), ", ")
}

// value is what a setting points to, or the zero value if it is not set.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func volumeText(v sandbox.Volume) string {
	if v.Name == "" {
		return ""
	}
	if shared := sharedText(v); shared != "" {
		return fmt.Sprintf("volume %s, %s and %s shared with a snapshot", v.Name, v.Size, shared)
	}
	return fmt.Sprintf("volume %s, %s", v.Name, v.Size)
}
