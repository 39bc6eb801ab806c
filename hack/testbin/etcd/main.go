// Command etcd is etcd of today, for the API server of bench/api: Debian's lacks what
// consistent lists from the API server's memory need.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
