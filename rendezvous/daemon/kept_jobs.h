// SPDX-License-Identifier: Apache-2.0
// A journal, in which jobs outlive a daemon, and its content. Only ddprund has one: a ddprun keeps
// no jobs, and doesn't load SQLite.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "rendezvous/journal/journal.h"
#include "rendezvous/journal/journal_file.h"

namespace ddprun::rendezvous {

struct KeptJobs {
  // Throws Error if the directory can't be used (journal_file.h).
  KeptJobs(const std::filesystem::path& directory, journal::Durability durability);
  // For a shared journal: other ddprunds may take over. `was_deposed` is called once, on the I/O
  // thread.
  KeptJobs(std::unique_ptr<journal::BatchWriter> shared, journal::Content its_content,
           std::function<void(const std::string& why)> was_deposed);
  std::unique_ptr<journal::BatchWriter> writer;
  journal::Content content;
  bool is_shared = false;
  std::function<void(const std::string& why)> deposed;
};

}  // namespace ddprun::rendezvous
