//! The names in `mm/vmalloc.c` and `mm/percpu.c` of Linux 6.12 that the core replaces.

/// Functions that the glue defines again, and those that only they called.
pub(super) const FUNCTIONS: &[&str] = &[
    // The tree of holes.
    "get_subtree_max_size",
    "free_vmap_area_rb_augment_cb",
    "find_va_links",
    "__link_va",
    "link_va",
    "link_va_augment",
    "__unlink_va",
    "unlink_va",
    "unlink_va_augment",
    "compute_subtree_max_size",
    "augment_tree_propagate_check",
    "augment_tree_propagate_from",
    "insert_vmap_area",
    "insert_vmap_area_augment",
    "__merge_or_add_vmap_area",
    "merge_or_add_vmap_area",
    "merge_or_add_vmap_area_augment",
    "get_va_next_sibling",
    "is_within_this_va",
    "find_vmap_lowest_match",
    "find_vmap_lowest_linear_match",
    "find_vmap_lowest_match_check",
    "fit_type",
    "classify_va_fit_type",
    "va_clip",
    "va_alloc",
    "__alloc_vmap_area",
    "free_vmap_area",
    "preload_this_cpu_lock",
    // Nodes, pools and the trees of busy areas.
    "addr_to_node_id",
    "addr_to_node",
    "id_to_node",
    "encode_vn_id",
    "decode_vn_id",
    "is_vn_id_valid",
    "size_to_va_pool",
    "node_pool_add_va",
    "node_pool_del_va",
    "node_alloc",
    "alloc_vmap_area",
    "__find_vmap_area",
    "__find_vmap_area_exceed_addr",
    "find_vmap_area_exceed_addr_lock",
    "find_vmap_area",
    "find_unlink_vmap_area",
    // Lazy areas and purges.
    "lazy_max_pages",
    "reclaim_list_global",
    "decay_va_pool_node",
    "kasan_release_vmalloc_node",
    "purge_vmap_node",
    "__purge_vmap_area_lazy",
    "reclaim_and_purge_vmap_areas",
    "drain_vmap_area_work",
    "free_vmap_area_noflush",
    // Blocks of small mappings.
    "addr_to_vb_xa",
    "addr_to_vb_idx",
    "vmap_block_vaddr",
    "new_vmap_block",
    "free_vmap_block",
    "purge_fragmented_block",
    "free_purged_blocks",
    "purge_fragmented_blocks",
    "purge_fragmented_blocks_allcpus",
    "vb_alloc",
    "vb_free",
    "_vm_unmap_aliases",
    "vmap_ram_vread_iter",
    // Per-CPU areas.
    "node_to_va",
    "pvm_find_va_enclose_addr",
    "pvm_determine_end_from_reverse",
    "pcpu_get_vm_areas",
    // Files, and the start.
    "vmalloc_dump_obj",
    "show_purge_info",
    "vmalloc_info_show",
    "proc_vmalloc_init",
    "vmap_init_free_space",
    "vmap_init_nodes",
    "vmap_node_shrink_count",
    "vmap_node_shrink_scan",
    "vmalloc_init",
];

/// Variables and types.
pub(super) const VARIABLES: &[&str] = &[
    "free_vmap_area_lock",
    "free_vmap_area_list",
    "free_vmap_area_root",
    "ne_fit_preload_node",
    "rb_list",
    "vmap_pool",
    "vmap_node",
    "vmap_nodes",
    "nr_vmap_nodes",
    "vmap_zone_size",
    "vmap_lazy_nr",
    "vmap_purge_lock",
    "purge_nodes",
    "vmap_block_queue",
    "vmap_block",
];

/// The item after which the first half of the glue is included. The second half comes last.
pub(super) const INCLUDES: &[(&str, &str)] = &[("vmap_notify_list", "#include \"va_glue.h\"")];

/// Texts inside items that change.
pub(super) const EDITS: &[(&str, &str, &str)] = &[
    // A record lies behind its vm_struct.
    ("__get_vm_area_node", "sizeof(*area)", "sizeof(struct va_record)"),
    ("vread_iter", "spin_unlock(&vn->busy.lock)", "va_readers_leave()"),
    // A block has no record.
    ("vread_iter", "struct vmap_area *va;", "struct vmap_area *va, block;"),
    ("vread_iter", ", &va)", ", &va, &block)"),
];

/// Functions of `mm/percpu.c` that the glue defines again, and those that only they called.
pub(super) const PERCPU: &[&str] = &[
    // From a bit to a block.
    "pcpu_index_alloc_map",
    "pcpu_off_to_block_index",
    "pcpu_off_to_block_off",
    "pcpu_block_off_to_off",
    // Hints, and the runs that are put together of them.
    "pcpu_check_block_hint",
    "pcpu_next_hint",
    "pcpu_next_md_free_region",
    "pcpu_next_fit_region",
    "pcpu_region_overlap",
    "pcpu_block_update",
    "pcpu_block_update_scan",
    "pcpu_chunk_refresh_hint",
    "pcpu_block_refresh_hint",
    "pcpu_block_update_hint_alloc",
    "pcpu_block_update_hint_free",
    // Searches, allocs and frees.
    "pcpu_is_populated",
    "pcpu_find_block_fit",
    "pcpu_find_zero_area",
    "pcpu_alloc_area",
    "pcpu_free_area",
    // The hints of a new chunk.
    "pcpu_init_md_block",
    "pcpu_init_md_blocks",
];

/// The item of `mm/percpu.c` after which the glue is included.
pub(super) const PERCPU_INCLUDES: &[(&str, &str)] =
    &[("pcpu_update_empty_pages", "#include \"va_percpu_areas.h\"")];

/// The same where Linux's functions stay, and are compared.
pub(super) const BOTH_INCLUDES: &[(&str, &str)] = &[("pcpu_init_md_blocks", "#include \"va_percpu_both.h\"")];

/// Functions that get other names there, and a call of one that does not.
pub(super) const BOTH_EDITS: &[(&str, &str, &str)] = &[
    ("pcpu_find_block_fit", "pcpu_find_block_fit(", "linux_find_block_fit("),
    ("pcpu_alloc_area", "pcpu_alloc_area(", "linux_alloc_area("),
    ("pcpu_free_area", "pcpu_free_area(", "linux_free_area("),
    ("pcpu_init_md_blocks", "pcpu_init_md_blocks(", "linux_init_md_blocks("),
    ("pcpu_alloc_first_chunk", "pcpu_block_update_hint_alloc(", "va_percpu_hide("),
];
