// Command guest runs inside every sandbox. Its first argument is a verb of package
// wire: init (PID 1), serve (commands over SSH on stdio), keep (detached commands),
// run (shed privileges and execute).
package main
