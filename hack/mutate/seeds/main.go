// Command seeds runs the simulator with the product on the seeds below -n, until one
// breaks an invariant, and says in one line what it found. hack/mutate builds it with
// mutants of the product inside.
package main

import (
	"flag"
	"fmt"

	"github.com/holdfast-cni/holdfast/internal/sim"
)

func main() {
	n := flag.Int("n", 100, "how many seeds")
	steps := flag.Int("steps", 200, "operations a seed")
	flag.Parse()
	for seed := range *n {
		if res := sim.Generate(uint64(seed), *steps, sim.NewHoldfast()); res.Fail != nil {
			fmt.Printf("found %s %d %s\n", res.Fail.Invariant, seed, res.Fail.Text)
			return
		}
	}
	fmt.Println("nothing")
}
