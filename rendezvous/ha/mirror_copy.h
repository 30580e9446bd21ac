// SPDX-License-Identifier: Apache-2.0
// A leader's rows on their way to a standby that has none of them yet: the snapshot, and what
// changes meanwhile, until commits can go there first (docs/ha-mirror.md, "From alone to
// mirrored").
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/clock.h"
#include "rendezvous/ha/mirror_link.h"
#include "rendezvous/ha/mirror_turns.h"
#include "rendezvous/ha/mirror_writer.h"
#include "rendezvous/journal/row.h"
#include "rendezvous/journal/row_file.h"

namespace ddprun::ha {

std::size_t size_of(const journal::Batch& batch);
// `limit`, and more for each 16 MiB.
std::chrono::milliseconds limit_for(const MirrorWriterOptions& options,
                                    std::chrono::milliseconds limit, std::size_t num_bytes);
// Without leader_rows.h's rows; waits for the acknowledgement. Throws MirrorLost, and
// Error(kResourceExhausted): a row is too large.
void send_batch(MirrorLink& link, MirrorLink::Session session, const journal::Batch& batch,
                Deadline deadline);

class MirrorCopy {
 public:
  // All of them outlive it.
  MirrorCopy(MirrorLink& link, const MirrorWriterOptions& options, journal::RowFile& file,
             MirrorTurns& turns)
      : link_(link), options_(options), file_(file), turns_(turns) {}

  // The copying thread. Until the session is kMirroring, or has ended.
  void run(MirrorLink::Session session);
  // In turn: this batch was committed to the file alone.
  void note_changes(const journal::Batch& batch);

 private:
  void begin();
  void end();
  std::size_t send_snapshot(MirrorLink::Session session);
  journal::Rows next_page();
  journal::Batch take_changes();
  bool catch_up(MirrorLink::Session session);

  MirrorLink& link_;
  const MirrorWriterOptions& options_;
  journal::RowFile& file_;
  MirrorTurns& turns_;

  // Of the thread whose turn it is.
  bool is_copying_ = false;
  bool is_read_ = false;         // to its end
  std::string read_up_to_;       // name of the last row that was read
  std::set<std::string> dirty_;  // names of rows that were changed since they were read
};

}  // namespace ddprun::ha
