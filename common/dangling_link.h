// SPDX-License-Identifier: Apache-2.0
// Symbolic links that point nowhere: "no such file" about a name that `ls` shows helps nobody.
#pragma once

#include <string>

namespace ddprun {

// Of `path` itself and the directories on its way, the first link whose target is not there:
// "/data is a link to /mnt/disk7, which does not exist". Empty: there is none.
std::string dangling_link(const std::string& path);

// Why `path` could not be opened, by its errno: one line, of a link that points nowhere that.
std::string opening_trouble(const std::string& path, int error);

}  // namespace ddprun
