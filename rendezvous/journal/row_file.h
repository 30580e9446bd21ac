// SPDX-License-Identifier: Apache-2.0
// Rows that can be read while they are written: by a copy that is made of them meanwhile.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "rendezvous/journal/journal.h"
#include "rendezvous/journal/row.h"

namespace ddprun::journal {

// As BatchWriter one thread at a time, reading included.
class RowFile : public BatchWriter {
 public:
  // The rows whose keys come after `key`, in the order of the keys: one, where there is one, and
  // as many more as have `max_bytes` in all. Throws Error: they can't be read, or not all of them.
  virtual Rows read_after(const std::string& key, std::size_t max_bytes) = 0;
  // nullopt: there is none. Throws likewise.
  virtual std::optional<std::string> read(const std::string& key) = 0;
};

}  // namespace ddprun::journal
