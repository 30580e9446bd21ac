// SPDX-License-Identifier: Apache-2.0
// Checks whether a node is fit for its part of the job (docs/preflight.md). Every node makes these
// checks before it joins, and again before it starts the workers of a round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ddprun::agent {

// The needs of this node's part of the job.
struct NodeNeeds {
  std::string program;                   // the file to execute
  std::string script;                    // the file that it reads; empty: none
  std::vector<std::string> directories;  // directories in which files are made
  bool uses_memory = false;              // ddprun's own files are in /dev/shm
  int num_workers = 1;
  // As the NVIDIA driver listed them when this node began; 0: the job doesn't count GPUs.
  int num_gpus = 0;
};

struct FileFacts {
  std::string path;
  int error = 0;            // errno if it can't be executed (a script: read); 0: it can
  std::string interpreter;  // of its "#!" line; empty: it has none
  int interpreter_error = 0;
};

struct DirectoryFacts {
  std::string path;
  int error = 0;  // errno if no file can be made in it; 0: one can
  std::uint64_t free_bytes = 0;
  std::uint64_t free_files = 0;
  bool counts_files = false;  // the file system limits the number of files
};

struct NodeFacts {
  FileFacts program;
  FileFacts script;
  std::vector<DirectoryFacts> directories;
  DirectoryFacts shared_memory;    // /dev/shm
  std::size_t max_open_files = 0;  // the soft limit
  int num_gpus = 0;                // as the loaded NVIDIA driver lists them
};

// Gathers the facts in less than a millisecond; starts nothing and changes nothing. A dead file
// server blocks it, as it would block the worker itself.
NodeFacts gather_node_facts(const NodeNeeds& needs);

// Returns how many GPUs the loaded NVIDIA driver lists, without asking any of them; 0 without a
// driver.
int num_listed_gpus();

// The consequence of a failed check for the job.
enum class NodeVerdict {
  kUnfit,       // this node's workers would fail; another node may be fit
  kUsersFault,  // the same on every node: the job asks for something impossible
  kSaid,        // only told: the workers may do without
};

// A check that failed. `check` is its name in docs/preflight.md.
struct NodeProblem {
  std::string check;
  std::string seen;    // "/tmp is on a file system that can only be read"
  std::string wanted;  // what is needed, or how to repair it
  NodeVerdict verdict = NodeVerdict::kUnfit;
};

// Returns the problems. Only what makes the workers fail for sure keeps a node out; the rest is
// kSaid. Pure.
std::vector<NodeProblem> check_node(const NodeNeeds& needs, const NodeFacts& facts);

// Returns "check: seen; wanted".
std::string to_text(const NodeProblem& problem);

// Returns all of them as one line.
std::string to_text(const std::vector<NodeProblem>& problems);

}  // namespace ddprun::agent
