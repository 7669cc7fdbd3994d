// Package sftpserver serves SFTP version 3, with the extensions of OpenSSH's server, whose answers it gives: the same errors,
// the same refusals, requests in their order. It is the verb sftp.
package sftpserver
