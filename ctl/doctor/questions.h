// SPDX-License-Identifier: Apache-2.0
// What is asked in processes of their own, and how an answer comes back: as fields of a probe.
#pragma once

#include <string>

#include "ctl/doctor/facts.h"
#include "ctl/doctor/probe.h"

namespace ddprun::doctor {

Probe::Fields look_at_directory(const std::string& path);
DirectorySpace directory_of_fields(const Probe::Fields& fields);

Probe::Fields look_up_name(const std::string& name);
NameAnswer name_of_fields(const Probe::Fields& fields);

// `endpoint`: as --rdzv-endpoint has it; of several the first one counts. Sends no packet but the
// name look-up's.
Probe::Fields look_up_route(const std::string& endpoint);
RouteAnswer route_of_fields(const Probe::Fields& fields);

// The interface that has the numeric address; "" where none has.
std::string interface_of(const std::string& address);

Probe::Fields endpoint_fields(const EndpointAnswer& answer);
EndpointAnswer endpoint_of_fields(const Probe::Fields& fields);

}  // namespace ddprun::doctor
