// SPDX-License-Identifier: Apache-2.0
// A leader's journal that a standby may mirror: what is committed goes to the standby first, once
// there is one, and then to the file (docs/ha-mirror.md).
#pragma once

#include <chrono>
#include <cstddef>
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
  // For the acknowledgement of a batch, and of a snapshot; more for each 16 MiB in it.
  std::chrono::milliseconds ack_limit{2'000}, snapshot_limit{60'000}, limit_per_16_mib{1'000};
  // From the snapshot's acknowledgement on: rows that change faster than they can be sent.
  std::chrono::milliseconds catch_up_limit{60'000};
  std::chrono::milliseconds last_step_limit{1'000};  // that commits wait for once, to be mirrored
  std::chrono::milliseconds stall_limit{30'000};     // no part of a snapshot was taken for so long
  std::size_t page_bytes = std::size_t{1} << 20;     // of rows that are read at once
};

class MirrorWriter : public journal::BatchWriter {
 public:
  MirrorWriter(std::unique_ptr<journal::RowFile> file, std::shared_ptr<MirrorLink> link,
               MirrorWriterOptions options);
  // A disk that hangs is left behind after 2 s, with the thread that reads it.
  ~MirrorWriter() override;
  MirrorWriter(const MirrorWriter&) = delete;
  MirrorWriter& operator=(const MirrorWriter&) = delete;

  // Alone: as the file's. Mirrored: the standby has it, and then the file, or journal::Deposed.
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
