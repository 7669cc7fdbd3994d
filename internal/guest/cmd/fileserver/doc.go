// Package fileserver carries out file operations for one client, as the user that it runs
// as: by this module's own protocol (see package wire), or by SFTP.
package fileserver
