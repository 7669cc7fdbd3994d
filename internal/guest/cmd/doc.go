// Command guest runs inside every sandbox. Its first argument is a verb of package
// wire, and each verb is a function of a package below this one: PID 1 is of pid1,
// commands and SSH are of sshserver, and so on.
package main
