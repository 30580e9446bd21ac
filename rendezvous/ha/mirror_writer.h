// SPDX-License-Identifier: Apache-2.0
// A leader's journal that a standby may mirror: what is committed goes to the standby first, once
// there is one, and then to the file (docs/ha-mirror.md).
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/ha/mirror_link.h"
#include "rendezvous/journal/journal.h"
#include "rendezvous/journal/row_file.h"

namespace ddprun::ha {

struct MirrorWriterOptions {
  // Rows that are not to be copied to a standby, by what their names begin with: of jobs that are
  // held ("jobs/7/", "stores/7/"). Called on a thread of the journal's, once for each copy. Before
  // the rows of such a job are committed anew, in one batch, it is told of no more.
  std::function<std::vector<std::string>()> held;
  // For the acknowledgement of a batch, and of a snapshot; more for each 16 MiB in it.
  std::chrono::milliseconds ack_limit{2'000}, snapshot_limit{60'000}, limit_per_16_mib{1'000};
  std::chrono::milliseconds last_step_limit{1'000};  // that commits wait for once, to be mirrored
  std::chrono::milliseconds stall_limit{30'000};     // no part of a snapshot was taken for so long
  std::size_t page_bytes = std::size_t{1} << 20;     // of rows that are read at once
  // Between the tries to write what the file lacks; doubles with each.
  std::chrono::milliseconds first_retry{1'000}, last_retry{60'000};
};

class MirrorWriter : public journal::BatchWriter {
 public:
  MirrorWriter(std::unique_ptr<journal::RowFile> file, std::shared_ptr<MirrorLink> link,
               MirrorWriterOptions options);
  // Writes what the file lacks; where that fails, the link has it. A disk that hangs is left behind
  // after 2 s, with the thread that reads it.
  ~MirrorWriter() override;
  MirrorWriter(const MirrorWriter&) = delete;
  MirrorWriter& operator=(const MirrorWriter&) = delete;

  // Alone: as the file's. Mirrored: the standby has it, or journal::Deposed; the file has it, or
  // its trouble is said, and it is written later.
  void commit(const journal::Batch& batch) override;
  void cancel() override;
  std::string name() const override;
  std::string trouble() const override;

 private:
  class Impl;
  const std::shared_ptr<Impl> impl_;  // second owner: the thread
  std::thread thread_;
};

}  // namespace ddprun::ha
