// SPDX-License-Identifier: Apache-2.0
// Reads whole texts from a descriptor and writes them to one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun {

struct ReadText {
  std::string text;
  int error = 0;  // errno of a failed read, EAGAIN too; the text is what came before it
};

// Reads from the position of `fd` to its end, or `most` bytes.
ReadText read_text(int fd, std::size_t most);

// Writes all of it. Returns 0, or errno of the error that stopped it: ENOSPC if nothing more was
// taken.
int write_text(int fd, std::string_view text);

}  // namespace ddprun
