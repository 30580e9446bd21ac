# SPDX-License-Identifier: Apache-2.0
# Debian packages `ddprun` (programs, manual pages, completions, units, /etc/ddprun) and
# `libddprun-dev` (the SDK's headers and static libraries). `cpack -G DEB` in the build folder makes them, see
# docs/packages.md. They don't have `train`, because no Debian package has its LibTorch.

# Only packages install this file, because `cmake --install` writes only below its prefix.
install(FILES configs/ddprun.toml DESTINATION /etc/ddprun COMPONENT package EXCLUDE_FROM_ALL)

set(CPACK_PACKAGE_NAME ddprun)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_VENDOR ddprun)
# This summary comes before each package's own description.
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "launcher for distributed data-parallel training")
# This address reaches nobody. Set your own if you make packages for others (docs/packages.md).
set(CPACK_PACKAGE_CONTACT "The ddprun authors <maintainers@ddprun.invalid>")
# `~` sorts before the end of a version: 1~deb12u1 < 1~deb13u1 < 1. A machine that is upgraded to Debian 13 gets that
# release's package at the next update. A package from Debian itself would replace both.
cmake_host_system_information(RESULT distribution QUERY DISTRIB_INFO)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_CHANGELOG_DISTRIBUTION unstable)
if(distribution_ID STREQUAL debian AND distribution_VERSION_ID)
  set(CPACK_DEBIAN_PACKAGE_RELEASE 1~deb${distribution_VERSION_ID}u1)
  set(CPACK_DEBIAN_CHANGELOG_DISTRIBUTION ${distribution_VERSION_CODENAME})
endif()
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_GENERATOR DEB)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/debian_tree.cmake)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ
    GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_COMPONENTS_ALL Unspecified package sdk)
set(CPACK_COMPONENT_UNSPECIFIED_GROUP ddprun)
set(CPACK_COMPONENT_PACKAGE_GROUP ddprun)
set(CPACK_COMPONENT_SDK_GROUP libddprun-dev)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS OFF)

set(CPACK_DEBIAN_DDPRUN_PACKAGE_NAME ddprun)
set(CPACK_DEBIAN_DDPRUN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_DDPRUN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_DDPRUN_PACKAGE_RECOMMENDS libdw1)  # native stacks of workers that hang
set(CPACK_DEBIAN_DDPRUN_PACKAGE_DEPENDS procps)  # /bin/kill, which the units use for reload
set(CPACK_DEBIAN_DDPRUN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_DDPRUN_DESCRIPTION "Starts one worker process for each GPU of each node, restarts a job whose
worker or node failed, and says what went wrong first. PyTorch programs run
under it unchanged, as under torchrun.

Has the launcher ddprun, the rendezvous daemon ddprund with its systemd units,
and ddprunctl, which shows what they do.")
foreach(script postinst prerm postrm)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/debian/ddprun.${script} ${CMAKE_BINARY_DIR}/debian/${script} COPYONLY)
  list(APPEND CPACK_DEBIAN_DDPRUN_PACKAGE_CONTROL_EXTRA ${CMAKE_BINARY_DIR}/debian/${script})
endforeach()
file(WRITE ${CMAKE_BINARY_DIR}/debian/conffiles "/etc/ddprun/ddprun.toml\n")
list(APPEND CPACK_DEBIAN_DDPRUN_PACKAGE_CONTROL_EXTRA ${CMAKE_BINARY_DIR}/debian/conffiles)

set(CPACK_DEBIAN_LIBDDPRUN-DEV_PACKAGE_NAME libddprun-dev)
set(CPACK_DEBIAN_LIBDDPRUN-DEV_PACKAGE_SECTION libdevel)
# Depends on the C++ library of the compiler that built the static libraries.
string(REGEX MATCH "^[0-9]+" compiler_major ${CMAKE_CXX_COMPILER_VERSION})
set(CPACK_DEBIAN_LIBDDPRUN-DEV_PACKAGE_DEPENDS "libstdc++-dev")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  string(PREPEND CPACK_DEBIAN_LIBDDPRUN-DEV_PACKAGE_DEPENDS "libstdc++-${compiler_major}-dev | ")
endif()
set(CPACK_DEBIAN_LIBDDPRUN-DEV_PACKAGE_RECOMMENDS "ddprun, cmake")
set(CPACK_DEBIAN_LIBDDPRUN-DEV_DESCRIPTION "The worker SDK for C++ programs: communicators over NCCL or shared memory and
sockets, data parallelism, data loaders and checkpoints, as static libraries
with a CMake package: find_package(ddprun).")
include(CPack)
