// SPDX-License-Identifier: Apache-2.0
// Whole texts, read from a descriptor and written to one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun {

struct ReadText {
  std::string text;
  int error = 0;  // errno of a read that failed: EAGAIN, too; the text is what came before it
};

// From where `fd` stands to its end, or `most` bytes.
ReadText read_text(int fd, std::size_t most);

// All of it. Returns 0, or errno of what broke it off: ENOSPC where nothing more was taken.
int write_text(int fd, std::string_view text);

}  // namespace ddprun
