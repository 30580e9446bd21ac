// SPDX-License-Identifier: Apache-2.0
// A rendezvous' pages for people. Pure. A rendezvous may say anything, so a name with control
// characters doesn't break a table's line.
#pragma once

#include <string>

namespace ddprun::ctl {

// The page /v1/jobs: a line for each job, those that are over last. Throws Error(kProtocol) where
// it isn't one.
std::string jobs_table(const std::string& page);

// The page /v1/status: a fact on each line. It throws as the one above does.
std::string status_table(const std::string& page);

}  // namespace ddprun::ctl
