// SPDX-License-Identifier: Apache-2.0
// What report.css and the status page's palette are at build time, and the policy that lets a
// browser use this style and ask for nothing.
#pragma once

#include <string_view>

namespace ddprun::report {

extern const std::string_view kReportStyle;
extern const std::string_view kReportPolicy;
extern const std::string_view kReportIcon;  // a <link> with its picture in it

}  // namespace ddprun::report
