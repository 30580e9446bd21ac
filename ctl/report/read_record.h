// SPDX-License-Identifier: Apache-2.0
// The files of a job's record, found and read. Blocking.
#pragma once

#include <string>
#include <vector>

#include "ctl/report/record.h"

namespace ddprun::report {

// `paths`: files, and directories: each *.json and *.jsonl of one, and the events.*.jsonl of its
// subdirectories (those of --log-dir). `job`: which one, where there are several; empty: the only
// one. Throws Error(kInvalidArgument): there is no record of that job, or of several and none is
// named, or one of them can't be read; kSystem naming what fails while it is read.
Record read_record(const std::vector<std::string>& paths, const std::string& job);

}  // namespace ddprun::report
