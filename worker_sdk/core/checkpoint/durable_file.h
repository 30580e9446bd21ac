// SPDX-License-Identifier: Apache-2.0
// Files that are whole or not there, whatever happens to the process or the machine meanwhile.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// What a writer adds to the name of a file that isn't whole yet; its process id follows.
inline constexpr std::string_view kTemporaryMark = ".tmp-";

// Writes `pieces`, one after the other, under a temporary name beside `path`, fsyncs, renames to
// `path` (which is replaced) and fsyncs the directory. Throws Error(kSystem) "can't write the
// checkpoint PATH: …"; then `path` is as before, and nothing else is left.
void write_durably(const std::string& path, const std::vector<std::string_view>& pieces);

// What was made, renamed or removed in it is there after a power loss, too. Throws Error(kSystem)
// that begins with `what`.
void sync_directory(const std::string& path, const std::string& what);

// All of it. Throws Error(kSystem) "can't read the checkpoint PATH: …".
std::string read_whole(const std::string& path);

}  // namespace ddprun
