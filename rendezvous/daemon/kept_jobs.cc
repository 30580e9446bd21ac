// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/kept_jobs.h"

#include <utility>

namespace ddprun::rendezvous {

KeptJobs::KeptJobs(const std::filesystem::path& directory, journal::Durability durability) {
  auto file = std::make_unique<journal::JournalFile>(directory, durability);
  content = file->load();
  writer = std::move(file);
}

KeptJobs::KeptJobs(std::unique_ptr<journal::BatchWriter> shared, journal::Content its_content,
                   std::function<void(const std::string& why)> was_deposed)
    : writer(std::move(shared)),
      content(std::move(its_content)),
      is_shared(true),
      deposed(std::move(was_deposed)) {}

}  // namespace ddprun::rendezvous
