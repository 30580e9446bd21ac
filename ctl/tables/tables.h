// SPDX-License-Identifier: Apache-2.0
// Shows a rendezvous' pages to people. Pure. Control characters in a name don't break a table's
// line.
#pragma once

#include <string>

namespace ddprun::ctl {

// Shows the page /v1/jobs: a line for each job, jobs that are over last. Throws Error(kProtocol) if
// it isn't that page.
std::string jobs_table(const std::string& page);

// Shows the page /v1/status: a fact on each line. Throws Error(kProtocol) if it isn't that page.
std::string status_table(const std::string& page);

}  // namespace ddprun::ctl
