// SPDX-License-Identifier: Apache-2.0
// The journal in which jobs outlive a daemon, and the jobs in it. ddprund alone has one: a ddprun
// keeps no jobs, and loads no SQLite.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "rendezvous/journal/journal.h"
#include "rendezvous/journal/journal_file.h"

namespace ddprun::rendezvous {

struct KeptJobs {
  // Throws Error where the directory can't be used (journal_file.h).
  KeptJobs(const std::filesystem::path& directory, journal::Durability durability);
  // If others may take over (Journal, "shared"). `was_deposed` is called once, on the io thread.
  KeptJobs(std::unique_ptr<journal::BatchWriter> shared, journal::Content its_content,
           std::function<void(const std::string& why)> was_deposed);
  std::unique_ptr<journal::BatchWriter> writer;
  journal::Content content;
  bool is_shared = false;
  std::function<void(const std::string& why)> deposed;
};

}  // namespace ddprun::rendezvous
